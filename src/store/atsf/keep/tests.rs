use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::super::line::AtsfThreadStats;
use super::super::{line as atsf_line, schema};
use super::head::KeptSource;
use super::*;
use crate::store::Kind;
use crate::store::sessions::message::{
    CallStatus, SessionBlock, SessionImage, SessionResultFile, SessionRole, TokenCount, ToolCall,
};
use crate::store::sessions::render::image_name;
use crate::store::text::json_values::pick_members;

const ID: &str = "5f0c2f0a-9a35-4b1e-9d1c-0c6a4a5b7e01";

struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("shop")).unwrap();
        Self { dir }
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("shop")
    }

    fn list(&self) -> PathBuf {
        self.dir.path().join("state").join(list::FILE)
    }

    /// Returns the project as a keep opens it while these sessions are there.
    fn kept_project(&self, there: &[&str]) -> KeptProject {
        KeptProject::open(self.project(), self.list(), |id| there.contains(&id))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.project().join(AGENT).join(THREADS).join(ID).join(name)
    }

    fn keep(&self, messages: &[SessionMessage]) -> Result<KeepReport, StoreError> {
        self.keep_titled(messages, "upload fails")
    }

    fn keep_titled(
        &self,
        messages: &[SessionMessage],
        title: &str,
    ) -> Result<KeepReport, StoreError> {
        let kind =
            if messages.iter().any(|m| m.id.len() == 32) { Kind::Codex } else { Kind::Claude };
        keep_session(&mut self.kept_project(&[ID]), (kind, ID), |each| {
            messages.iter().cloned().try_for_each(each)?;
            Ok(head(kind, title))
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file(LOG)).unwrap()
    }

    fn meta(&self) -> String {
        fs::read_to_string(self.file(META)).unwrap()
    }

    /// Returns the messages of the log as they were in the session.
    fn read_back(&self, kind: Kind) -> Vec<SessionMessage> {
        let source = KeptSource { kind, agent: None };
        let image = |name: &str| fs::read(self.file("assets").join(name)).ok();
        let log = self.log();
        let read = |text: &str| {
            line::read_message(&atsf_line::parse(text).unwrap(), text, &source, &image)
        };
        log.lines().map(read).collect()
    }
}

fn head(kind: Kind, title: &str) -> SessionHead {
    SessionHead {
        id: ID.into(),
        kind,
        title: title.into(),
        version: "2.1.332".into(),
        cwd: "/home/anna/shop".into(),
        git_branch: Some("main".into()),
        git_commit: None,
        worktree: Some("/home/anna/wt".into()),
        parent: Some("0d3be1b2-77ab-4c55-8f0e-53f8d0c7e902".into()),
    }
}

fn message(id: &str, role: SessionRole, text: &str) -> SessionMessage {
    SessionMessage {
        id: id.into(),
        role,
        agent: None,
        time: Timestamp::from_millis(1_777_000_000_123),
        blocks: vec![SessionBlock::Text(text.into())],
        stop_reason: None,
        model: None,
        tokens: None,
        in_reply_to: None,
        name_time: None,
        result_files: Vec::new(),
    }
}

fn three() -> Vec<SessionMessage> {
    let mut all: Vec<SessionMessage> = ["a", "b", "c"]
        .iter()
        .map(|id| message(id, SessionRole::Agent, &format!("text {id}")))
        .collect();
    all[0].role = SessionRole::User;
    all
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_session_becomes_a_thread_that_only_its_owner_reads() {
    let bed = Bed::new();
    let mut all = three();
    let data = b"\x89PNG picture";
    let image = SessionImage { media_type: "image/png".into(), data: data[..].into() };
    all[1].blocks = vec![
        SessionBlock::Thinking("hm".into()),
        SessionBlock::Image(image.clone()),
        SessionBlock::Call(ToolCall {
            id: "t1".into(),
            name: "Bash".into(),
            input: "{\"command\":\"ls\"}".into(),
            output: Some("a\n".into()),
            status: CallStatus::Completed,
            duration_ms: Some(12),
        }),
        SessionBlock::Text("done".into()),
    ];
    assert_eq!(bed.keep(&all).unwrap().added, 3);
    let meta: serde_json::Value = serde_json::from_str(&bed.meta()).unwrap();
    assert_eq!(meta["threadId"], ID);
    assert_eq!(meta["title"], "upload fails");
    assert_eq!(
        meta["agent"],
        serde_json::json!({"id": "claude-code", "name": "Claude Code", "version": "2.1.332", "protocol": "custom"})
    );
    assert_eq!(meta["context"]["worktree"]["path"], "/home/anna/wt");
    assert_eq!(meta["stats"]["messageCount"], 3);
    assert_eq!(meta["metadata"]["msgfs"]["source"], "claude");
    assert_eq!(meta["metadata"]["msgfs"]["key"], "c");
    assert_eq!(schema::check_thread(&bed.meta()), [""; 0]);
    for line in bed.log().lines() {
        assert_eq!(schema::check_message(line), [""; 0]);
    }
    let assets = bed.file("assets");
    let thread = bed.file("");
    for folder in [&bed.project().join(AGENT), &thread, &assets] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    for file in [bed.file(META), bed.file(LOG), assets.join(image_name(&image)), bed.list()] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_second_keep_changes_nothing_and_a_third_adds_what_is_new() {
    let bed = Bed::new();
    bed.keep(&three()[..2]).unwrap();
    let before = (bed.log(), bed.meta(), fs::read(bed.list()).unwrap());
    assert_eq!(bed.keep(&three()[..2]).unwrap(), KeepReport::default());
    assert_eq!(before, (bed.log(), bed.meta(), fs::read(bed.list()).unwrap()));
    fs::set_permissions(bed.file(META), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(bed.keep_titled(&three(), "new title").unwrap().added, 1);
    assert_eq!(mode(&bed.file(META)), 0o666);
    assert!(bed.log().starts_with(&before.0));
    let meta: serde_json::Value = serde_json::from_str(&bed.meta()).unwrap();
    assert_eq!((&meta["title"], &meta["stats"]["messageCount"]), (&"new title".into(), &3.into()));
    assert_eq!(meta["metadata"]["msgfs"]["key"], "c");
}

#[test]
fn what_other_programs_dropped_is_written_again_and_what_they_added_stays() {
    let bed = Bed::new();
    bed.keep(&three()).unwrap();
    let whole = bed.meta();
    let (start, _) = whole.split_once("  \"metadata\"").unwrap();
    for end in
        ["\"x\":[1e2]\n}\n", "\"metadata\":{}}", "\"metadata\":{\"o\":1}}", "\"metadata\":7}"]
    {
        fs::write(bed.file(META), format!("{start}{end}")).unwrap();
        assert_eq!(bed.keep(&three()).unwrap().added, 0);
        let meta: serde_json::Value = serde_json::from_str(&bed.meta()).unwrap();
        assert_eq!(meta["metadata"]["msgfs"]["source"], "claude", "{end}");
        assert_eq!(bed.meta().contains("[1e2]"), end.contains("[1e2]"));
        assert_eq!(meta["metadata"]["o"].is_number(), end.contains("\"o\""));
    }
    let listed = KeptList::default();
    listed.set_folder(bed.list().parent().unwrap());
    let source = KeptSource { kind: Kind::Claude, agent: None };
    assert_eq!(listed.find_thread(ID), Some(source));
    assert_eq!(listed.find_thread("other"), None);
}

#[test]
fn a_keep_that_was_killed_is_completed() {
    let (bed, whole) = (Bed::new(), Bed::new());
    whole.keep(&three()).unwrap();
    bed.keep(&three()).unwrap();
    let log = bed.log();
    // Whatever the kill has left of the log, and with or without the rest.
    for len in 0..=log.len() {
        fs::write(bed.file(LOG), &log[..len]).unwrap();
        if len % 2 == 0 {
            fs::remove_file(bed.file(META)).unwrap();
        }
        if len % 3 == 0 {
            fs::remove_file(bed.list()).unwrap();
        }
        bed.keep(&three()).unwrap();
        assert_eq!((bed.log(), bed.meta()), (whole.log(), whole.meta()), "{len}");
        assert!(bed.list().exists());
    }
}

#[test]
fn a_last_line_is_ended_even_with_a_byte_order_mark_or_too_long() {
    let bed = Bed::new();
    bed.keep(&three()).unwrap();
    let log = bed.log();
    let (first, rest) = log.split_once('\n').unwrap();
    let marked = format!("\u{feff}{first}");
    fs::write(bed.file(LOG), &marked).unwrap();
    assert_eq!(bed.keep(&three()).unwrap().added, 2);
    assert_eq!(bed.log(), format!("{marked}\n{rest}"));
    let file = File::options().write(true).truncate(true).open(bed.file(LOG)).unwrap();
    file.set_len(MAX_LINE as u64 + 1).unwrap();
    assert_eq!(bed.keep(&three()).unwrap().added, 3);
    let bytes = fs::read(bed.file(LOG)).unwrap();
    assert_eq!(bytes.get(MAX_LINE + 1..), Some(format!("\n{log}").as_bytes()));
}

#[test]
fn a_file_that_many_blocks_name_is_read_once() {
    let image =
        r#"{"type":"image","assetRef":"sha256-0123456789abcdef.png","mimeType":"image/png"}"#;
    let result =
        r#"{"type":"resource","uri":"tool-results/a","assetRef":"sha256-0123456789abcdef.txt"}"#;
    let blocks = [[image; 1000].join(","), [result; 1000].join(",")].join(",");
    let text = format!(r#"{{"id":"a","role":"agent","timestamp":"","content":[{blocks}]}}"#);
    let source = KeptSource { kind: Kind::Claude, agent: None };
    let reads = std::cell::Cell::new(0);
    let asset = |name: &str| {
        reads.set(reads.get() + 1);
        Some(name.as_bytes().to_vec())
    };
    let message = line::read_message(&atsf_line::parse(&text).unwrap(), &text, &source, &asset);
    assert_eq!(reads.get(), 2);
    assert_eq!((message.blocks.len(), message.result_files.len()), (1000, 1000));
}

#[test]
fn an_edited_log_loses_nothing() {
    let bed = Bed::new();
    bed.keep(&three()).unwrap();
    let log = bed.log();
    let lines: Vec<&str> = log.lines().collect();
    let edited = lines[1].replace("text b", "edited");
    let bad = "not JSON";
    fs::write(bed.file(LOG), format!("{bad}\n{edited}\n{}\n", lines[2])).unwrap();
    assert_eq!(bed.keep(&three()).unwrap().added, 1, "only the line that is missing");
    assert_eq!(bed.log(), format!("{bad}\n{edited}\n{}\n{}\n", lines[2], lines[0]));
}

#[test]
fn folders_of_others_are_left_alone() {
    let bed = Bed::new();
    fs::create_dir_all(bed.file("")).unwrap();
    for meta in
        ["{}", "{\"specVersion\":\"1.1\",\"threadId\":\"other\"}", "{\"specVersion\":\"2.0\"}"]
    {
        fs::write(bed.file(META), meta).unwrap();
        assert!(matches!(bed.keep(&three()), Err(StoreError::NotPermitted(_))), "{meta}");
        assert!(!bed.file(LOG).exists());
    }
    for id in ["", ".", "..", "a/b", ".hidden"] {
        let kept = keep_session(&mut bed.kept_project(&[ID]), (Kind::Claude, id), |each| {
            each(three().remove(0))?;
            Ok(head(Kind::Claude, "t"))
        });
        assert!(matches!(kept, Err(StoreError::Invalid(_))), "{id:?}");
    }
    // A session without messages makes nothing.
    let empty = Bed::new();
    assert_eq!(empty.keep(&[]).unwrap(), KeepReport::default());
    assert!(!empty.project().join(AGENT).exists());
}

#[test]
fn what_was_read_before_a_failure_is_kept() {
    let bed = Bed::new();
    let failed = keep_session(&mut bed.kept_project(&[ID]), (Kind::Claude, ID), |each| {
        each(three().remove(0))?;
        Err(StoreError::Moved)
    });
    assert!(matches!(failed, Err(StoreError::Moved)));
    assert_eq!(bed.log().lines().count(), 1);
    assert!(!bed.file(META).exists());
    assert_eq!(bed.keep(&three()).unwrap().added, 2);
}

#[test]
fn two_keeps_at_once_double_nothing() {
    let bed = Bed::new();
    let all: Vec<SessionMessage> =
        (0..400).map(|n| message(&format!("m{n}"), SessionRole::Agent, "x")).collect();
    let added: u64 = std::thread::scope(|scope| {
        let keepers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| bed.keep(&all).unwrap().added)).collect();
        keepers.into_iter().map(|keeper| keeper.join().unwrap()).sum()
    });
    assert_eq!((added, bed.log().lines().count()), (400, 400));
    assert_eq!(fs::read_to_string(bed.list()).unwrap().lines().count(), 1);
}

#[test]
fn a_fork_keeps_nothing_that_the_thread_of_its_origin_has() {
    let bed = Bed::new();
    bed.keep(&three()).unwrap();
    let keep_fork = |there: &[&str], messages: &[SessionMessage]| {
        let mut project = bed.kept_project(there);
        let kept = keep_session(&mut project, (Kind::Claude, "fork"), |each| {
            messages.iter().cloned().try_for_each(each)?;
            Ok(SessionHead { id: "fork".into(), ..head(Kind::Claude, "t") })
        });
        kept.unwrap().added
    };
    let fork = bed.file("").with_file_name("fork");
    assert_eq!(keep_fork(&["fork"], &three()), 0);
    assert!(!fork.exists());
    let mut all = three();
    all.push(message("d", SessionRole::Agent, "text d"));
    assert_eq!(keep_fork(&["fork"], &all), 1);
    assert_eq!(keep_fork(&["fork"], &all), 0);
    // The thread of the origin is another program's, and then it is gone.
    let meta = bed.meta();
    fs::write(bed.file(META), meta.replace(ID, "other")).unwrap();
    assert_eq!(keep_fork(&["fork"], &all[..1]), 1);
    fs::write(bed.file(META), meta).unwrap();
    assert_eq!(keep_fork(&["fork"], &all), 0);
    fs::remove_dir_all(bed.file("")).unwrap();
    assert_eq!(keep_fork(&["fork"], &all), 2);
    let ids = fs::read_to_string(fork.join(LOG)).unwrap();
    let ids = ids.lines().map(|text| atsf_line::parse(text).unwrap().id.into_owned());
    assert_eq!(ids.collect::<Vec<_>>(), ["d", "a", "b", "c"]);
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z\"\\\\\n\u{2028}]{0,12}"]
}

fn any_block() -> impl Strategy<Value = SessionBlock> {
    let status = prop_oneof![
        Just(CallStatus::Completed),
        Just(CallStatus::Failed),
        Just(CallStatus::Pending)
    ];
    let call =
        ("[a-c]", any_text(), any_text(), any::<Option<String>>(), status, any::<Option<u32>>());
    let image = (prop_oneof![Just("image/png"), Just("image/jpeg"), Just("x")], any::<Vec<u8>>());
    prop_oneof![
        any_text().prop_map(SessionBlock::Text),
        any_text().prop_map(SessionBlock::Thinking),
        image.prop_map(|(media_type, data)| SessionBlock::Image(SessionImage {
            media_type: media_type.into(),
            data: data.into()
        })),
        call.prop_map(|(id, name, input, output, status, duration)| SessionBlock::Call(ToolCall {
            id,
            name,
            input,
            output,
            status,
            duration_ms: duration.map(u64::from),
        })),
    ]
}

fn any_message() -> impl Strategy<Value = SessionMessage> {
    let role =
        prop_oneof![Just(SessionRole::User), Just(SessionRole::Agent), Just(SessionRole::System)];
    let tokens = any::<Option<(u32, u32)>>();
    let files = prop::collection::vec(("[a-z]{1,8}", any::<Vec<u8>>()), 0..3);
    let agent = any::<Option<String>>();
    let blocks = prop::collection::vec(any_block(), 0..5);
    (role, 0i64..253_402_207_200_000, blocks, any::<[Option<String>; 2]>(), tokens, files, agent)
        .prop_map(|(role, time, blocks, [stop_reason, model], tokens, files, agent)| {
            SessionMessage {
                agent,
                result_files: files
                    .into_iter()
                    .map(|(name, data)| SessionResultFile { name, data: data.into() })
                    .collect(),
                role,
                time: Timestamp::from_millis(time),
                blocks,
                stop_reason,
                model,
                tokens: tokens.map(|(input, output)| TokenCount {
                    input: input.into(),
                    output: output.into(),
                }),
                ..message("", role, "")
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_read_back(
        messages in prop::collection::vec(any_message(), 1..6),
        is_codex: bool,
        split in 0usize..6,
    ) {
        let (bed, mut messages) = (Bed::new(), messages);
        for (n, message) in messages.iter_mut().enumerate() {
            message.id = if is_codex { format!("{n:032x}") } else { format!("{n:08}-uuid") };
            message.in_reply_to = (n == 1).then(|| if is_codex { "f".repeat(32) } else { "x".into() });
        }
        let kind = if is_codex { Kind::Codex } else { Kind::Claude };
        bed.keep(&messages[..split.min(messages.len())]).unwrap();
        bed.keep(&messages).unwrap();
        let bytes = (bed.log(), bed.meta());
        prop_assert_eq!(bed.keep(&messages).unwrap(), KeepReport::default());
        prop_assert_eq!(&bytes, &(bed.log(), bed.meta()));
        prop_assert_eq!(bed.read_back(kind), messages);
        prop_assert_eq!(schema::check_thread(&bytes.1), [""; 0]);
        for line in bytes.0.lines() {
            prop_assert_eq!(schema::check_message(line), [""; 0]);
        }
    }

    #[test]
    fn ids_go_both_ways(id in "[0-9a-f]{32}", other in any::<String>()) {
        let kept = line::kept_id(Kind::Codex, &id);
        prop_assert_eq!(kept.len(), 36);
        prop_assert_eq!(line::session_id(Kind::Codex, &kept), id);
        prop_assert_eq!(line::session_id(Kind::Claude, &kept), kept);
        prop_assert_eq!(line::session_id(Kind::Codex, &other), other);
    }

    #[test]
    fn any_line_is_a_message(text in any::<String>(), number in any::<i64>()) {
        let source = KeptSource { kind: Kind::Codex, agent: None };
        let block = serde_json::json!({"type": "tool_call_ref", "toolCallId": text, "text": number});
        let value = serde_json::json!({
            "id": "a", "role": text, "timestamp": text, "content": [block, number, {"type": text}],
            "toolCalls": [block, number], "tokens": {"input": number, "output": text},
            "inReplyTo": text, "subAgent": number
        });
        let line = value.to_string();
        let message =
            line::read_message(&atsf_line::parse(&line).unwrap(), &line, &source, &|_| None);
        prop_assert_eq!(message.blocks.len(), 1);
    }

    #[test]
    fn an_updated_thread_is_a_kept_one(text in "[\\[\\]{}\":,a0.e+ \\\\-]{0,60}", last_id in any::<String>()) {
        let source = KeptSource { kind: Kind::Codex, agent: None };
        let (head, created) = (head(Kind::Claude, "t"), Timestamp::default());
        let kept = KeptHead { head: &head, source: &source, last_id: &last_id, created };
        for text in [&*text, &format!("{{\"metadata\":{text}}}"), &format!("\u{feff} {{{text}}}")] {
            let updated = kept.update(text.as_bytes(), &AtsfThreadStats::default(), None);
            let Ok(Some(changed)) = updated else { continue };
            let changed = String::from_utf8(changed).unwrap();
            let [metadata] =
                pick_members(changed.trim_start_matches('\u{feff}'), ["metadata"]).unwrap();
            prop_assert_eq!(KeptSource::from_metadata(metadata.as_ref()), Some(source.clone()));
        }
    }
}
