//! The order in which messages and fetches get their turns.

use super::*;

/// Runs so many turns, without waiting for the backoff of the link.
fn run_turns(post: &MessageLink, schedule: &mut RetrySchedule, count: usize) {
    for _ in 0..count {
        schedule.pause_all(0);
        post.run_turn(schedule, &|| {}).unwrap();
    }
}

/// S1290: a message at which the connection breaks each time stops neither the other messages nor the inbox.
#[test]
fn s1290_a_message_that_always_fails_stops_no_other_and_no_fetch() {
    let bench = Bench::new();
    bench.fake.0.lock().mail = [("x".to_owned(), "hi".to_owned())].into();
    let post = bench.post();
    for (message, text) in [("a", "breaks"), ("b", "one"), ("c", "two")] {
        post.accept_parcel(&parcel(message, "bob", text)).unwrap();
    }
    let mut schedule = RetrySchedule::default();
    run_turns(&post, &mut schedule, 2);
    assert_eq!(bench.filed.lock().len(), 1, "fetched after the first failure");
    run_turns(&post, &mut schedule, 3);
    assert_eq!(bench.fake.0.lock().got, [b"one".to_vec(), b"two".to_vec()]);
    let Some(DeliveryFate::Waits(why)) = post.find_fate("a", "bob") else { panic!("it waits") };
    assert!(why.contains("reset, tried 2 times"), "{why}");
}

/// Many messages that go well do not stop the inbox.
#[test]
fn s1290_a_long_queue_does_not_stop_the_inbox() {
    let bench = Bench::new();
    bench.fake.0.lock().mail = [("x".to_owned(), "hi".to_owned())].into();
    let post = bench.post();
    for n in 0..40 {
        post.accept_parcel(&parcel(&format!("m{n:03}"), "bob", &format!("text {n:03}"))).unwrap();
    }
    run_turns(&post, &mut RetrySchedule::default(), 2);
    assert!(post.journal.lock().open_count() > 0);
    assert_eq!(bench.filed.lock().len(), 1);
}
