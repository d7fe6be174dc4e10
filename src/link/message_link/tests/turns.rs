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
        accept(&post, &parcel(message, "bob", text));
    }
    let mut schedule = RetrySchedule::default();
    run_turns(&post, &mut schedule, 2);
    assert_eq!(bench.filed.lock().len(), 1, "fetched after the first failure");
    run_turns(&post, &mut schedule, 3);
    assert_eq!(bench.fake.0.lock().got, [b"one".to_vec(), b"two".to_vec()]);
    let Some(DeliveryFate::Waits(why)) = post.find_fate("a", "bob") else { panic!("it waits") };
    assert!(why.contains("reset, tried 2 times"), "{why}");
}

/// S1290: several messages that always fail delay others by seconds, as long as mail can be fetched.
#[test]
fn s1290_messages_that_always_fail_delay_others_by_seconds() {
    let bench = Bench::new();
    let post = bench.post();
    for message in ["a", "b", "c", "d"] {
        let text = if message == "d" { "one" } else { "breaks" };
        accept(&post, &parcel(message, "bob", text));
    }
    let mut schedule = RetrySchedule::default();
    let mut waited = 0;
    while bench.fake.0.lock().got.is_empty() {
        schedule.pause_all(0);
        post.run_turn(&mut schedule, &|| {}).unwrap();
        waited += (schedule.sending.paused_until - now()).max(0);
    }
    assert!(waited <= 30_000, "{waited} ms");
}

/// The link tells the reason of the exchanges that fail now, and no older one.
#[test]
fn the_reason_of_a_link_is_that_of_what_fails() {
    let bench = Bench::new();
    let post = bench.post();
    accept(&post, &parcel("a", "bob", "breaks"));
    let mut schedule = RetrySchedule::default();
    bench.fake.0.lock().scripted = [None, Some(Fault::Away), None].into();
    let told = |why: &str| {
        let state = post.board().health().state;
        assert!(matches!(&state, LinkState::Waiting { why: told, .. } if told == why), "{state:?}");
    };
    for why in ["reset", "down"] {
        run_turns(&post, &mut schedule, 1);
        told(why);
    }
    for was_stopped in [false, true] {
        if was_stopped {
            post.board().report_stopped("another one carries");
        }
        schedule.is_fetch_first = true;
        run_turns(&post, &mut schedule, 1);
        told("reset");
    }
}

/// Many messages that go well do not stop the inbox.
#[test]
fn s1290_a_long_queue_does_not_stop_the_inbox() {
    let bench = Bench::new();
    bench.fake.0.lock().mail = [("x".to_owned(), "hi".to_owned())].into();
    let post = bench.post();
    for n in 0..40 {
        accept(&post, &parcel(&format!("m{n:03}"), "bob", &format!("text {n:03}")));
    }
    run_turns(&post, &mut RetrySchedule::default(), 2);
    assert!(post.journal.lock().open_count() > 0);
    assert_eq!(bench.filed.lock().len(), 1);
}

/// A message that a person gives up between its choice for a job and the job is not tried.
#[test]
fn s1291_what_is_given_up_right_before_its_job_stays_given_up() {
    let bench = Bench::new();
    let post = bench.post();
    accept(&post, &parcel("a", "bob", "one"));
    let mut schedule = RetrySchedule::default();
    let due = post.list_due_messages(&schedule).unwrap();
    assert_eq!(due, [0]);
    assert_eq!(post.drop_waiting().unwrap(), 1);
    let called = post.wakeup.current_counts().calls;
    post.deliver_messages(due, called, &mut schedule, &|| {}).unwrap();
    assert!(matches!(post.find_fate("a", "bob"), Some(DeliveryFate::Refused(_))));
    assert!(bench.fake.0.lock().got.is_empty());
}

/// A try without a job is none: a full disk prevents the job, and a loss of power can take it.
#[test]
fn a_message_without_its_job_can_be_given_up() {
    let bench = Bench::new();
    let post = bench.post();
    for message in ["a", "b"] {
        accept(&post, &parcel(message, "bob", message));
    }
    std::fs::write(bench.dir.path().join("jobs"), "").unwrap();
    let called = post.wakeup.current_counts().calls;
    post.deliver_messages(vec![0], called, &mut RetrySchedule::default(), &|| {}).unwrap_err();
    std::fs::remove_file(bench.dir.path().join("jobs")).unwrap();
    assert_eq!(post.journal.lock().entry(0).unwrap().tries, 0);
    post.journal.lock().record_tries(vec![1]).unwrap();
    drop(post);
    let post = bench.post();
    assert_eq!(post.journal.lock().entry(1).unwrap().tries, 1);
    assert_eq!(post.drop_waiting().unwrap(), 2);
    Bench::settle(&post);
    assert!(bench.fake.0.lock().got.is_empty());
}

/// A message whose bytes are gone is refused, and says nothing about the link.
#[test]
fn s1291_a_message_without_its_bytes_is_refused_and_stops_no_other() {
    let bench = Bench::new();
    let post = bench.post();
    for (message, text) in [("a", "one"), ("b", "two"), ("c", "three")] {
        accept(&post, &parcel(message, "bob", text));
    }
    let wire = |no| post.journal.lock().wire_path(no);
    std::fs::remove_file(wire(0)).unwrap();
    std::fs::remove_file(wire(2)).unwrap();
    std::fs::create_dir(wire(2)).unwrap();
    let mut schedule = RetrySchedule::default();
    let called = post.wakeup.current_counts().calls;
    schedule.note_failure(ExchangeSort::Fetch, "down", Duration::ZERO, 0);
    schedule.note_failure(ExchangeSort::Delivery, "down", Duration::ZERO, 0);
    post.deliver_messages(vec![0, 2], called, &mut schedule, &|| {}).unwrap();
    assert_eq!(schedule.sending.failures, 2);
    assert_eq!(post.board().health().state, LinkState::Starting);
    let Some(DeliveryFate::Waits(why)) = post.find_fate("c", "bob") else { panic!("it waits") };
    assert!(why.contains("cannot be read here"), "{why}");
    run_turns(&post, &mut schedule, 1);
    let Some(DeliveryFate::Refused(why)) = post.find_fate("a", "bob") else { panic!("refused") };
    assert!(why.contains("bytes are gone"), "{why}");
    assert_eq!(bench.fake.0.lock().got, [b"two"]);
}

/// S1293: an error that passes while a message is encoded is no refusal; the store hands it over again.
#[test]
fn s1293_a_message_that_cannot_be_read_now_is_not_refused() {
    let bench = Bench::new();
    let post = bench.post();
    post.accept_parcel(&parcel("a", "bob", "unread")).unwrap_err();
    assert_eq!(post.find_fate("a", "bob"), None);
    accept(&post, &parcel("a", "bob", "one"));
    Bench::settle(&post);
    assert_eq!(bench.fake.0.lock().got, [b"one"]);
}
