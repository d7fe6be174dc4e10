//! `-o` of `msgfs mount`, in the form of mount(8) and fstab.

use msgfs::config::parse_alias;
use msgfs::mailbox::MailboxOptions;
use msgfs::model::find_nearest;

/// Options that msgfs uses.
const KNOWN: &[&str] = &["me=NAME", "config=FILE", "ro", "rw", "allow_other"];

/// Options that mount(8), fstab and systemd handle themselves and still pass on. Our mounts are always nosuid
/// and nodev, and times of access are never kept, so nothing is lost.
const GENERIC: &str = "async atime auto default_permissions defaults dev diratime dirsync exec group iversion \
    lazytime loud mand noatime noauto nodev nodiratime noexec nofail noiversion nolazytime \
    nomand norelatime nostrictatime nosuid nouser nousers owner relatime silent strictatime suid \
    sync user users _netdev";

/// Parses one comma-separated list.
///
/// # Errors
/// Returns a sentence that names the unknown option and the nearest known one.
pub(crate) fn parse(list: &str) -> Result<MailboxOptions, String> {
    let mut options = MailboxOptions::default();
    for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("me", Some(value)) if !value.is_empty() => options.me = Some(parse_alias(value)?),
            ("config", Some(value)) if !value.is_empty() => options.config = Some(value.into()),
            ("me" | "config", _) => return Err(format!("`{name}` needs a value: {name}=...")),
            ("ro", None) => options.read_only = true,
            ("rw", None) => options.read_only = false,
            ("allow_other", None) => options.allow_other = true,
            // `user=NAME` and `comment=TEXT` are notes of mount(8) to itself.
            ("user" | "comment", Some(_)) => {}
            (name, None) if GENERIC.split(' ').any(|o| o == name) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            _ => return Err(unknown_option_error(option, name)),
        }
    }
    Ok(options)
}

fn unknown_option_error(option: &str, name: &str) -> String {
    let words = KNOWN.iter().map(|known| known.split('=').next().unwrap_or(known));
    let near = find_nearest(name, words);
    let hint = near.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
    format!("unknown mount option `{option}`{hint} (known: {})", KNOWN.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_fstab() {
        let list = "rw,nosuid,nodev,noauto,user,_netdev,x-systemd.automount,me=foo,allow_other,\
                    config=/etc/msgfs.toml,user=ada";
        assert_eq!(
            parse(list),
            Ok(MailboxOptions {
                me: Some("foo".to_owned()),
                config: Some("/etc/msgfs.toml".into()),
                read_only: false,
                allow_other: true,
                current_mount: None,
                mountpoint: None,
                carry: false,
                once: false,
                may_index: false,
            })
        );
        assert!(parse("rw,ro").unwrap().read_only);
        assert!(!parse("ro,rw").unwrap().read_only);
        assert_eq!(parse(""), Ok(MailboxOptions::default()));
    }

    /// S93: a wrong name is a usage error, as behind `--me`.
    #[test]
    fn s93_a_wrong_name_is_refused() {
        assert!(parse("ro,me=a b").unwrap_err().starts_with("a name "), "{:?}", parse("me=a b"));
    }

    #[test]
    fn unknown_options_are_refused_with_the_nearest() {
        assert!(parse("alow_other").unwrap_err().contains("did you mean `allow_other`"));
        assert!(parse("uid=0").unwrap_err().contains("unknown mount option `uid=0`"));
        assert!(
            parse("foo=bar").unwrap_err().contains("`foo=bar` (known"),
            "no other word is near"
        );
        assert!(parse("me=").unwrap_err().contains("needs a value"));
        assert!(parse("ro=1").is_err());
    }

    proptest! {
        #[test]
        fn any_list_is_parsed_without_panic(list in "\\PC{0,60}") {
            let _ = parse(&list);
        }
    }
}
