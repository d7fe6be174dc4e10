//! A certificate authority made by `openssl`, and a certificate for this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::run;

/// Makes `ca.pem`, `cert.pem` and `key.pem` in a folder, and returns the path of `ca.pem`.
#[track_caller]
pub(crate) fn certify(folder: &Path) -> PathBuf {
    let openssl = |args: &str| {
        let mut c = Command::new("openssl");
        c.args(args.split(' ')).current_dir(folder);
        let out = run(c, None);
        assert!(out.ok(), "openssl {args}: {out:?}");
    };
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    std::fs::write(folder.join("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        .unwrap();
    openssl(&format!("req -x509 {new} -keyout ca.key -out ca.pem -subj /CN=team -days 30"));
    openssl(&format!("req {new} -keyout key.pem -out req.pem -subj /CN=server"));
    openssl(
        "x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -out cert.pem -days 30",
    );
    folder.join("ca.pem")
}
