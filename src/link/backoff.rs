//! The backoff after failures.

use std::time::Duration;

/// The pauses after the first, second, … failure; the last one repeats.
const STEPS: [Duration; 7] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(3 * 60),
    Duration::from_secs(6 * 60),
    Duration::from_secs(15 * 60),
];

/// The time over which the tries of a message must spread before it counts as refused.
pub const GIVE_UP: Duration = Duration::from_secs(7 * 24 * 3600);

/// Returns the pause after this many failures in a row.
pub fn retry_delay(failures: u32) -> Duration {
    let step = failures.saturating_sub(1) as usize;
    let [.., last] = STEPS;
    if failures == 0 { Duration::ZERO } else { STEPS.get(step).copied().unwrap_or(last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_then_stay() {
        let waits: Vec<u64> = (0..10).map(|n| retry_delay(n).as_secs()).collect();
        assert_eq!(waits, [0, 1, 5, 30, 60, 180, 360, 900, 900, 900]);
        assert_eq!(retry_delay(u32::MAX), Duration::from_secs(900));
    }
}
