//! The certificates that this machine trusts, and the remedies when a server is not trusted or not there.

#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
use std::path::Path;
#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
use std::sync::LazyLock;

#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// The beginning of the library's error for a certificate that is not trusted.
const NOT_BELIEVED: &str = "invalid peer certificate";

/// The remedies, by the words of the library's error.
const HELP: [(&str, &str); 7] = [
    (
        "UnknownIssuer",
        "no authority known here signed the server's certificate: if the authority is your own, \
         name the file with its certificate by ca = \"FILE\" in a [[link]]",
    ),
    (
        "CaUsedAsEndEntity",
        "the server shows the certificate of an authority as its own: give it one that this authority signed \
         (with CA:FALSE)",
    ),
    ("not valid for name", "the server has another name: correct it in the settings of this link"),
    ("NotValidForName", "the server has another name: correct it in the settings of this link"),
    ("expired", "the server needs a new certificate, or the clock of this machine is wrong"),
    ("Expired", "the server needs a new certificate, or the clock of this machine is wrong"),
    (
        "not valid yet",
        "the clock of this machine is wrong, or the clock of the machine that made the certificate",
    ),
];

/// The remedies for errors before a certificate was seen, by the words of the library or the system.
const NO_SERVER: [(&str, &str); 5] = [
    (
        "Connection refused",
        "no server listens there: start it, or correct its address in the settings of this link",
    ),
    ("InvalidContentType", NO_TLS),
    ("unexpected end of file", NO_TLS),
    ("tls handshake eof", NO_TLS),
    ("NoCertificatesPresented", NO_TLS),
];

/// The remedy for a server that does not understand TLS.
const NO_TLS: &str = "TLS was tried, and the server speaks no TLS at this port, or hung up: correct the port, or, \
    for a server without TLS, the settings of this link (http:// instead of https://, no ftp_ssl, \
    smtp_ssl, imap_ssl or pop3_ssl)";

/// Returns true if an error says that the server's certificate is not trusted. Then nothing was sent to it.
pub fn is_certificate_rejected(error: &str) -> bool {
    error.contains(NOT_BELIEVED)
}

/// Adds the known remedy to an error. A repeated call adds nothing.
pub fn add_advice(error: String) -> String {
    let of_tls = HELP.iter().filter(|_| is_certificate_rejected(&error));
    let mut all = of_tls.chain(&NO_SERVER);
    let help = all.find(|(what, _)| error.contains(what)).map(|(_, help)| *help);
    match help.filter(|help| !error.contains(help)) {
        Some(help) => format!("{error}; {help}"),
        None => error,
    }
}

/// Adds to an error of the start of TLS that TLS was tried, unless the certificate is the cause. A repeated call adds
/// nothing.
#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
pub fn add_handshake_advice(error: String) -> String {
    let told = add_advice(error);
    if is_certificate_rejected(&told) || told.contains(NO_TLS) {
        told
    } else {
        format!("{told}; {NO_TLS}")
    }
}

/// Returns the certificates that this machine trusts, and those of a file in PEM.
///
/// # Errors
/// Returns the reason why the file cannot be used.
#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
pub fn load_root_certificates(ca: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, String> {
    // Reading them takes longer than a request, and no process that polls lives long.
    static OF_THE_MACHINE: LazyLock<Vec<CertificateDer<'static>>> =
        LazyLock::new(|| rustls_native_certs::load_native_certs().certs);
    let mut roots = OF_THE_MACHINE.clone();
    let Some(path) = ca else { return Ok(roots) };
    let why = |e: &dyn std::fmt::Display| {
        format!("the certificate file that ca names, {}: {e}", crate::model::display_path(path))
    };
    let before = roots.len();
    for cert in CertificateDer::pem_file_iter(path).map_err(|e| why(&e))? {
        let cert = cert.map_err(|e| why(&e))?;
        RootCertStore::empty().add(cert.clone()).map_err(|e| why(&e))?;
        roots.push(cert);
    }
    if roots.len() == before { Err(why(&"holds no certificate")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certificates_get_help() {
        for (error, help) in [
            ("invalid peer certificate: UnknownIssuer", "ca = "),
            ("io: invalid peer certificate: certificate not valid for name \"x\"", "another name"),
            ("invalid peer certificate: certificate expired: verification time 7", "clock"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
        ] {
            assert!(add_advice(error.to_owned()).contains(help), "{error}");
        }
        let refused =
            add_advice("x cannot be reached: io: Connection refused (os error 111)".into());
        assert!(refused.ends_with(
            "; no server listens there: start it, or correct its address in the settings of this \
             link"
        ));
        assert_eq!(add_advice(refused.clone()), refused);
        for error in
            ["io: received corrupt message of type InvalidContentType", "unexpected end of file"]
        {
            assert!(add_advice(error.to_owned()).contains("no TLS at this port"), "{error}");
        }
        let reset = add_handshake_advice("Connection reset by peer (os error 104)".into());
        assert!(
            reset.starts_with("Connection reset") && reset.contains("TLS was tried"),
            "{reset}"
        );
        assert_eq!(add_handshake_advice(reset.clone()), reset);
        let expired = "invalid peer certificate: Expired".to_owned();
        assert!(!add_handshake_advice(expired).contains("TLS was tried"));
        for error in ["it refuses the key", "the session expired", "UnknownIssuer"] {
            assert_eq!(add_advice(error.to_owned()), error);
        }
    }
}
