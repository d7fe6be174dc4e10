//! Work on many things at once, on all cores.

use std::sync::LazyLock;

/// A thread is not worth its start for fewer things than this.
const LEAST: usize = 16;

/// Asking takes a while, for the limits of a container are in files.
static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// What `f` makes of each item, in their order.
pub fn map<'a, T: Sync, R: Send>(items: &'a [T], f: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let threads = (items.len() / LEAST).min(*CORES);
    if threads < 2 {
        return items.iter().map(f).collect();
    }
    let f = &f;
    std::thread::scope(|scope| {
        let start = |share: &'a [T]| share.iter().map(f).collect::<Vec<R>>();
        let running: Vec<_> = items
            .chunks(items.len().div_ceil(threads))
            .map(|share| scope.spawn(move || start(share)))
            .collect();
        let done = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        done.flat_map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_done_once_and_in_order() {
        for count in [0, 1, 31, 32, 33, 1000] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map(&items, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let items: Vec<usize> = (0..100).collect();
        assert!(std::panic::catch_unwind(|| map(&items, |n| assert!(*n != 77))).is_err());
    }
}
