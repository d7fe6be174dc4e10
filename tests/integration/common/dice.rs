//! Random numbers that can be repeated.

/// A small generator. Its user prints the seed, so that a failure can be repeated.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Returns one of these.
    #[allow(dead_code, reason = "not every target chooses so")]
    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}
