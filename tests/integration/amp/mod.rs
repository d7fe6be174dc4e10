//! AMP 0.1 mailboxes in the mount.

mod faults;
mod marks;
mod reading;
mod sending;
mod threads;
mod verifying;

use crate::common::amp::Home;
use crate::common::{Bed, Mount};

/// Makes a bed whose only store has the agents bar and alice, filled by `fill`, and mounts it for bar.
#[track_caller]
fn with(fill: impl FnOnce(&Bed, &Home)) -> (Bed, Home, Mount) {
    let bed = Bed::new();
    let home = Home::new(&bed);
    bed.config(&home.store());
    fill(&bed, &home);
    let m = bed.mount("bar");
    (bed, home, m)
}
