//! The place of the bell's state.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::{bed, payload, says};

/// S506: a runtime folder that is a symlink, or that others can write to, is not used, with and without a slash at
/// its end. Folders above it may be symlinks.
#[test]
fn s506_the_runtime_folder_is_a_private_folder() {
    let mut bed = bed(1);
    let (real, above, linked) = (bed.path("real/run"), bed.path("above"), bed.path("linked"));
    fs::create_dir_all(&real).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(bed.path("real"), &above).unwrap();
    symlink(&real, &linked).unwrap();
    let open = bed.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let in_state = bed.path("state/msgfs/hook");
    for (runtime, used) in [
        (above.join("run").display().to_string(), real.join("msgfs/hook")),
        (linked.display().to_string(), in_state.clone()),
        (format!("{}/", linked.display()), in_state.clone()),
        (format!("{}/.", linked.display()), in_state.clone()),
        (open.display().to_string(), in_state.clone()),
        (bed.path("none").display().to_string(), in_state.clone()),
    ] {
        bed.env.push(("XDG_RUNTIME_DIR".into(), runtime.clone().into()));
        let said = says(&bed, "session-start", "codex", &payload("codex", "session-start"));
        assert!(said.contains("1 unread"), "{runtime}: {said}");
        bed.env.pop();
        for place in [real.join("msgfs"), in_state.clone(), open.join("msgfs")] {
            assert_eq!(place.exists(), used.starts_with(&place), "{runtime}: {}", place.display());
            let _ = fs::remove_dir_all(place);
        }
    }
}
