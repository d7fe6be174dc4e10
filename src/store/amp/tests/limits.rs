//! Many files and their cost.

use super::*;
use crate::store::RawTree as _;

#[test]
fn twenty_thousand_files_and_a_broken_one() {
    let host = Host::new(&["bob"]);
    let template = mail("msg_IDIDID_a", "eve", "bob").json();
    let dir = host.agents().join("bob/messages/inbox/eve");
    std::fs::create_dir_all(&dir).unwrap();
    for n in 0..20_000 {
        let id = format!("{n:06}");
        std::fs::write(dir.join(format!("msg_{id}_a.json")), template.replace("IDIDID", &id))
            .unwrap();
    }
    let broken = dir.join("msg_1_b.json");
    std::fs::write(&broken, "[]").unwrap();
    age(&broken);
    let store = host.open("bob");
    let started = std::time::Instant::now();
    let mut books = Book::scanned(&store);
    let cold = started.elapsed();
    assert_eq!((books.messages.len(), books.rejected.len()), (20_000, 1));
    let started = std::time::Instant::now();
    books.scan(&store, true);
    let warm = started.elapsed();
    assert_eq!(books.reported, 20_000);
    let saved = store.save_cursors().len();
    println!("cold {cold:?}, warm {warm:?}, table {} bytes a file", saved / 20_001);
    assert!(saved / 20_001 < 110);
    assert_eq!(store.list_raw_folder("messages/inbox/eve").unwrap().len(), 20_001);
}
