//! tantivy: an index with positions and without stored texts, one thread that writes, files mapped as the library does.

use std::error::Error;
use std::ops::Bound;

use tantivy::collector::{Count, TopDocs};
use tantivy::query::{BooleanQuery, Occur, PhraseQuery, RangeQuery, TermQuery};
use tantivy::schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::{AsciiFoldingFilter, LowerCaser, SimpleTokenizer, TextAnalyzer};
use tantivy::{IndexWriter, Order, TantivyDocument, Term};

use crate::Query;

pub struct Index {
    index: tantivy::Index,
    writer: Option<IndexWriter>,
    /// The opened index, kept from query to query as a mount would.
    searcher: Option<tantivy::Searcher>,
    number: Field,
    subject: Field,
    body: Field,
}

fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(LowerCaser)
        .filter(AsciiFoldingFilter)
        .build()
}

impl Index {
    fn wrap(index: tantivy::Index) -> Result<Self, Box<dyn Error>> {
        index.tokenizers().register("folded", analyzer());
        let schema = index.schema();
        Ok(Self {
            number: schema.get_field("number")?,
            subject: schema.get_field("subject")?,
            body: schema.get_field("body")?,
            index,
            writer: None,
            searcher: None,
        })
    }

    pub fn create(folder: &str) -> Result<Self, Box<dyn Error>> {
        std::fs::create_dir_all(folder)?;
        let mut schema = Schema::builder();
        let texts = TextOptions::default().set_indexing_options(
            TextFieldIndexing::default()
                .set_tokenizer("folded")
                .set_fieldnorms(false)
                .set_index_option(IndexRecordOption::WithFreqsAndPositions),
        );
        schema.add_u64_field("number", FAST);
        schema.add_text_field("subject", texts.clone());
        schema.add_text_field("body", texts);
        let mut index = Self::wrap(tantivy::Index::create_in_dir(folder, schema.build())?)?;
        index.writer = Some(index.index.writer_with_num_threads(1, 64_000_000)?);
        Ok(index)
    }

    pub fn open(folder: &str) -> Result<Self, Box<dyn Error>> {
        let mut index = Self::wrap(tantivy::Index::open_in_dir(folder)?)?;
        index.searcher = Some(index.index.reader()?.searcher());
        Ok(index)
    }

    fn writer(&mut self) -> Result<&mut IndexWriter, Box<dyn Error>> {
        self.writer.as_mut().ok_or_else(|| "opened for reading".into())
    }

    fn searcher(&self) -> Result<&tantivy::Searcher, Box<dyn Error>> {
        self.searcher.as_ref().ok_or_else(|| "opened for writing".into())
    }

    pub fn add(&mut self, n: u64, subject: &str, body: &str) -> Result<(), Box<dyn Error>> {
        let mut document = TantivyDocument::new();
        document.add_u64(self.number, n);
        document.add_text(self.subject, subject);
        document.add_text(self.body, body);
        self.writer()?.add_document(document)?;
        Ok(())
    }

    pub fn commit(&mut self) -> Result<(), Box<dyn Error>> {
        self.writer()?.commit()?;
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), Box<dyn Error>> {
        self.commit()?;
        if let Some(writer) = self.writer.take() {
            writer.wait_merging_threads()?;
        }
        Ok(())
    }

    pub fn count(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.searcher()?.num_docs())
    }

    /// Returns the number of matches and the newest ten.
    pub fn search(&self, query: &Query) -> Result<(u64, Vec<u64>), Box<dyn Error>> {
        let either = |make: &dyn Fn(Field) -> Box<dyn tantivy::query::Query>| -> Box<dyn tantivy::query::Query> {
            Box::new(BooleanQuery::new(vec![(Occur::Should, make(self.subject)), (Occur::Should, make(self.body))]))
        };
        let query = match query {
            Query::Words(words) => Box::new(BooleanQuery::new(
                words
                    .iter()
                    .map(|word| {
                        let made = either(&|field| {
                            Box::new(TermQuery::new(
                                Term::from_field_text(field, word),
                                IndexRecordOption::Basic,
                            ))
                        });
                        (Occur::Must, made)
                    })
                    .collect(),
            )) as Box<dyn tantivy::query::Query>,
            Query::Phrase(words) => either(&|field| {
                Box::new(PhraseQuery::new(
                    words.iter().map(|word| Term::from_field_text(field, word)).collect(),
                ))
            }),
            Query::Prefix(begin) => either(&|field| {
                let end = format!("{begin}\u{10ffff}");
                Box::new(RangeQuery::new(
                    Bound::Included(Term::from_field_text(field, begin)),
                    Bound::Excluded(Term::from_field_text(field, &end)),
                ))
            }),
        };
        let searcher = self.searcher()?;
        let newest = TopDocs::with_limit(10).order_by_fast_field::<u64>("number", Order::Desc);
        let (count, found) = searcher.search(query.as_ref(), &(Count, newest))?;
        Ok((count as u64, found.into_iter().map(|(number, _)| number).collect()))
    }
}
