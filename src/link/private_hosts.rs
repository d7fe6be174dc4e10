//! The hosts to which plain text may go: this machine and private addresses. `insecure = true` permits all others.

use std::net::IpAddr;

/// Returns true for this machine, a private address, or a name that only a local network has. Names are not looked up,
/// since their addresses may change.
pub fn is_private_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => is_private_host(&ip.to_string()),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
        Err(_) => {
            let name = bare.trim_end_matches('.').to_ascii_lowercase();
            let last = name.rsplit('.').next().unwrap_or_default();
            last == "localhost" || (last == "local" && name != "local")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_private_host;

    #[test]
    fn what_is_private() {
        for host in [
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.5",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.1.1",
            "::1",
            "[::1]",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
            "localhost",
            "LOCALHOST.",
            "x.local",
        ] {
            assert!(is_private_host(host), "{host}");
        }
        for host in [
            "8.8.8.8",
            "172.32.0.1",
            "2001:db8::1",
            "example.com",
            "local",
            "localhost.example.com",
            "10.0.0.5.example.com",
            "",
            "::ffff:8.8.8.8",
            "notlocalhost",
        ] {
            assert!(!is_private_host(host), "{host}");
        }
    }
}
