//! Stores that many tests start from.

use super::samp::{self, Rec, T0};
use super::{Bed, Mount};

/// Appends three messages to bar from two senders, an hour apart.
pub(crate) fn three(bed: &Bed) -> [Rec; 3] {
    [
        samp::append(&bed.store, "foo", "bar", "plan", "first of three", T0),
        samp::append(&bed.store, "carol", "bar", "lunch", "second of three", T0 + 3600),
        samp::append(&bed.store, "foo", "bar", "plan", "third of three", T0 + 7200),
    ]
}

/// Makes [`three`] and mounts for bar. Returns the names in `inbox/` as well.
#[track_caller]
pub(crate) fn mounted_three() -> (Bed, Mount, [Rec; 3], Vec<String>) {
    let bed = Bed::new();
    let recs = three(&bed);
    let names: Vec<String> = recs.iter().map(|r| r.name(0)).collect();
    let mount = bed.mount("bar");
    assert_eq!(mount.ls("inbox"), names);
    (bed, mount, recs, names)
}

/// Returns names as the slices that assertions take.
pub(crate) fn strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
