//! Messages with a vocabulary of 50,000 words whose frequencies follow Zipf's law, the same in each run.

/// A generator of messages.
pub struct Generator {
    state: u64,
    /// Sums of the words' shares, for a search by bisection.
    sums: Vec<f64>,
}

impl Generator {
    pub fn new() -> Self {
        let mut sums = Vec::with_capacity(50_000);
        let mut sum = 0.0;
        for n in 1..=50_000 {
            sum += 1.0 / f64::from(n);
            sums.push(sum);
        }
        Self { state: 0x9e37_79b9_7f4a_7c15, sums }
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn add_words(&mut self, count: u64, text: &mut String) {
        let last = self.sums[self.sums.len() - 1];
        for n in 0..count {
            let at = (self.random() >> 11) as f64 / (1u64 << 53) as f64 * last;
            let word = self.sums.partition_point(|sum| *sum < at);
            if n > 0 {
                text.push(if n % 12 == 0 { '\n' } else { ' ' });
            }
            text.push('w');
            text.push_str(&word.to_string());
        }
    }

    /// Returns a subject of 2 to 6 words and a body of 10 to 120 words.
    pub fn next_message(&mut self) -> (String, String) {
        let (mut subject, mut body) = (String::new(), String::new());
        let (short, long) = (2 + self.random() % 5, 10 + self.random() % 111);
        self.add_words(short, &mut subject);
        self.add_words(long, &mut body);
        (subject, body)
    }
}
