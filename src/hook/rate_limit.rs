//! The rate limit of rings while no person types: two agents that answer each other must not keep each other awake for
//! ever.

/// The number of rings after which they are slowed down.
const MANY: usize = 5;
/// The least time between slowed rings, in seconds.
const SLOWED: u64 = 60;
/// The largest number of rings, and the seconds in which it counts.
const MOST: (usize, u64) = (20, 3600);

/// Returns the time at which the next ring may come. `rings` are the times of rings since a person has typed.
pub(super) fn compute_next_ring(rings: &[u64], now: u64) -> u64 {
    // A clock that was set back must not delay the ring for ever.
    let mut past: Vec<u64> = rings.iter().map(|ring| (*ring).min(now)).collect();
    past.sort_unstable();
    let mut due = now;
    if let Some(last) = past.last().filter(|_| past.len() >= MANY) {
        due = due.max(last + SLOWED);
    }
    if let Some(oldest) = past.len().checked_sub(MOST.0).and_then(|n| past.get(n)) {
        due = due.max(oldest + MOST.1);
    }
    due
}

/// Adds a ring. Only the rings that [`compute_next_ring`] examines are kept.
pub(super) fn note_ring(rings: &mut Vec<u64>, now: u64) {
    rings.push(now);
    let surplus = rings.len().saturating_sub(MOST.0);
    rings.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_slowed_and_capped() {
        let now = 1_000_000;
        assert_eq!(compute_next_ring(&[], now), now);
        assert_eq!(compute_next_ring(&[now, now, now, now], now), now);
        assert_eq!(compute_next_ring(&[now; 5], now), now + 60);
        assert_eq!(
            compute_next_ring(&[now - 601, now, now, now, now], now),
            now + 60,
            "nobody has typed"
        );
        assert_eq!(
            compute_next_ring(&[now - 100, now - 90, now - 80, now - 70, now - 61], now),
            now
        );
        assert_eq!(
            compute_next_ring(&[now - 100, now - 90, now - 80, now - 70, now - 30], now),
            now + 30
        );
        let each_minute: Vec<u64> = (0..20).map(|n| now - 60 * n).collect();
        assert_eq!(compute_next_ring(&each_minute, now), now - 60 * 19 + 3600);
        assert_eq!(compute_next_ring(&each_minute, now + 3600), now + 3600);
        assert_eq!(
            compute_next_ring(&[now + 1_000_000; 30], now),
            now + 3600,
            "the clock was set back"
        );
    }

    #[test]
    fn thirty_rings_in_a_row_take_hours() {
        let (mut rings, mut times, mut now) = (Vec::new(), Vec::new(), 1_000_000);
        let began = now;
        for _ in 0..30 {
            now = compute_next_ring(&rings, now);
            note_ring(&mut rings, now);
            times.push(now);
        }
        assert_eq!((times[4], times[5], times[6]), (began, began + 60, began + 120));
        let busiest = times.windows(21).map(|some| some[20] - some[0]).min();
        assert_eq!((busiest, rings.len()), (Some(3600), 20));
    }
}
