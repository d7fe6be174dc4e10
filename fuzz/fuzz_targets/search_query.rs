//! A name in `search/` gives a query or a reason, never a panic. A printed query is the same query, and its places lie in the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::search::{MatchFinder, SearchQuery};

fuzz_target!(|texts: (String, String)| match texts.0.parse::<SearchQuery>() {
    Ok(query) => {
        assert_eq!(query.to_string().parse(), Ok(query.clone()));
        if let Some(place) = MatchFinder::new(&query).find_in_body(&texts.1) {
            assert!(texts.1.get(place).is_some_and(|found| !found.is_empty()));
        }
    }
    Err(error) => assert!(!error.to_string().is_empty()),
});
