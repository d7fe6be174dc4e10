//! The bytes of other programs stay as they are when a message is appended.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// Returns a JSON value in an odd spelling.
fn odd_value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("1e2".to_owned()),
        Just("-0.0E+00".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        Just("\"\\ud800\"".to_owned()),
        Just("\"\\u0041\\/\u{e9}\"".to_owned()),
        Just("null".to_owned()),
        any::<String>().prop_map(|s| serde_json::to_string(&s).unwrap()),
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        let list = proptest::collection::vec(inner, 0..3);
        prop_oneof![
            list.clone().prop_map(|v| format!("[ {}]", v.join(" ,\t"))),
            list.prop_map(|v| {
                let members: Vec<String> = v.iter().map(|v| format!("\"k\" :{v}")).collect();
                format!("{{{} }}", members.join(", "))
            }),
        ]
    })
}

/// Returns unknown members to put into an object.
fn odd_members() -> impl Strategy<Value = String> {
    proptest::collection::vec(("[a-z]{1,3}_", odd_value()), 0..3).prop_map(|list| {
        list.into_iter()
            .flat_map(|(k, v)| ["\"".into(), k, "\":  ".into(), v, ", ".into()])
            .collect()
    })
}

#[derive(Clone, Debug)]
struct Odd {
    space: String,
    end: String,
    outer: String,
    inner: String,
    line: String,
    messages: usize,
    tail: bool,
}

fn odd_thread() -> impl Strategy<Value = Odd> {
    let space = prop_oneof![Just(""), Just(" "), Just("\t"), Just("\r\n  ")];
    let end = prop_oneof![Just(""), Just("\n"), Just("\r\n"), Just(" \n\n")];
    (space, end, odd_members(), odd_members(), odd_members(), 0usize..4, any::<bool>()).prop_map(
        |(space, end, outer, inner, line, messages, tail)| {
            let (space, end) = (space.to_owned(), end.to_owned());
            Odd { space, end, outer, inner, line, messages, tail }
        },
    )
}

impl Odd {
    /// Returns a `thread.json` with these derived values.
    fn meta(&self, total: &str, user: &str, updated: &str) -> String {
        let Self { space: s, end, outer, inner, .. } = self;
        format!(
            "{{{s}{outer}\"specVersion\"{s}:\"1.9\",\"title\":\"\\u0074\",\"threadId\":\"t\",{s}\"stats\":{s}{{{inner}\"messageCount\"{s}:{s}{total},\"toolCallCount\":0.0,\"userMessageCount\":{user}{s},\"agentMessageCount\":0}},\"updatedAt\"{s}:\"{updated}\"}}{end}"
        )
    }

    fn log(&self) -> String {
        let line = |n: usize| {
            let s = self.space.replace(['\r', '\n'], "");
            format!(
                "{{{}\"id\":{s}\"m{n}\",\"role\":\"user\",\"timestamp\":\"{TIME}\",{s}\"content\":[{{{}\"type\":\"text\",\"text\":\"x\"}}]}}",
                self.line, self.line
            )
        };
        let mut log: String = (0..self.messages).map(|n| line(n) + "\n").collect();
        if self.tail && self.messages > 0 {
            log.pop();
        }
        log
    }
}

#[test]
fn a_thousand_threads_keep_every_byte() {
    let mut runner =
        TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(1000) });
    let project = Project::new();
    let held = runner.run(&odd_thread(), |odd| {
        project.thread("t", &[]);
        let (log, total) = (odd.log(), odd.messages);
        std::fs::write(project.log("t"), &log).unwrap();
        std::fs::write(project.meta("t"), odd.meta("77", "1e3", "x")).unwrap();
        let spec = StoreSpec { state: None, ..project.spec() };
        let store = AtsfStore::open(&spec).unwrap();
        let mut books = Book::default();
        store.scan(true, &mut books).unwrap();
        prop_assert_eq!(books.messages.len(), total);
        let prepared = prepare(&store, &draft(Some("t"), None, "new")).unwrap();
        store.append_record(&prepared).unwrap();
        let newline = if log.is_empty() || log.ends_with('\n') { "" } else { "\n" };
        prop_assert_eq!(read(&project.log("t")), format!("{log}{newline}{}\n", prepared.bytes));
        let count = (total + 1).to_string();
        prop_assert_eq!(
            read(&project.meta("t")),
            odd.meta(&count, &count, "2025-02-14T12:00:00.123Z")
        );
        Ok(())
    });
    held.unwrap();
}
