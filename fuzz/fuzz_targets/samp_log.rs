//! A whole foreign log: every reported record can be read again, and nothing is reported twice.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use msgfs::store::{self, FoundMessage, Kind, Location, Rejection, ScanSink, StoreSpec};

#[derive(Default)]
struct Seen {
    found: Vec<(Location, String)>,
    rejected: usize,
}

impl ScanSink for Seen {
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        rejected: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)> {
        self.found.extend(found.drain(..).map(|f| (f.at, f.id.into_owned())));
        self.rejected += rejected.len();
        rejected.clear();
        Vec::new()
    }
    fn begin_rescan(&mut self, _: &[u32]) {}
    fn end_rescan(&mut self, _: &[u32]) {}
    fn resume_source(&mut self, _: u32) {}
    fn report_progress(&mut self, _: u64, _: u64) {}
}

fuzz_target!(|data: &[u8]| {
    let dir = std::env::temp_dir().join(format!("msgfs-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("log-foo.jsonl"), data).unwrap();
    let spec = StoreSpec {
        name: "samp".into(),
        kind: Kind::Samp,
        dir: dir.clone(),
        me: "bar".into(),
        ..StoreSpec::default()
    };
    let store = store::open(&spec).unwrap();
    let mut seen = Seen::default();
    store.scan(true, &mut seen).unwrap();
    let places: HashSet<_> = seen.found.iter().map(|(at, _)| at.offset).collect();
    assert_eq!(places.len(), seen.found.len());
    for (at, id) in &seen.found {
        assert_eq!(store.read_record(at).unwrap().message.id, *id);
    }
    let lines = data.split(|b| *b == b'\n' || *b == b'\r').count();
    assert!(seen.found.len() + seen.rejected <= lines);
    // A second scan of an unchanged folder finds nothing.
    let mut again = Seen::default();
    store.scan(true, &mut again).unwrap();
    assert!(again.found.is_empty() && again.rejected == 0);
});
