//! Which addresses may be called.
//!
//! A name is resolved here, every address is judged, and the connection is made to a judged address, never to the name: a
//! name that points somewhere else a moment later changes nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use laneway::Failure;
use url::{Host, Url};

/// How far requests reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Public addresses only: private, loopback, link-local and other special ones are refused.
    #[default]
    Public,
    /// Every address.
    Any,
}

/// The addresses behind a URL that may be called, `also` in any case. Refusals are for good, failed look-ups are not.
pub(crate) async fn resolve(
    url: &Url,
    reach: Reach,
    also: Option<SocketAddr>,
) -> Result<Vec<SocketAddr>, Failure> {
    let port = url.port_or_known_default().unwrap_or(80);
    let found: Vec<SocketAddr> = match url.host() {
        Some(Host::Ipv4(address)) => vec![(address, port).into()],
        Some(Host::Ipv6(address)) => vec![(address, port).into()],
        Some(Host::Domain(name)) => {
            let looked_up = tokio::net::lookup_host((name, port)).await;
            looked_up.map_err(|error| Failure::retry(format!("`{name}` was not found: {error}")))?.collect()
        }
        None => return Err(Failure::discard(format!("`{url}` has no host"))),
    };
    let may = |address: &SocketAddr| reach == Reach::Any || is_public(address.ip()) || also == Some(*address);
    let allowed: Vec<_> = found.iter().copied().filter(may).collect();
    match (allowed.is_empty(), found.first()) {
        (true, Some(address)) => Err(Failure::discard(format!(
            "`{}` is at {}, which is not a public address; allow private targets to call it",
            url.host_str().unwrap_or_default(),
            address.ip()
        ))),
        (true, None) => Err(Failure::retry(format!("`{url}` has no address"))),
        _ => Ok(allowed),
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240 // reserved, and broadcast
        || (a == 100 && (64..128).contains(&b)) // shared by carriers
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19)); // benchmarks
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, .., seventh, eighth] = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        // Addresses that stand for one of version 4: mapped, compatible, translated, and 6to4.
        [0, 0, 0, 0, 0, 0xffff | 0, ..] => embedded(seventh, eighth),
        [0x64, 0xff9b, ..] => embedded(seventh, eighth),
        [0x2002, high, low, ..] => embedded(high, low),
        _ => {
            let is_special = (first == 0x2001 && (second == 0 || second == 0xdb8)) // Teredo, documentation
                || first & 0xfe00 == 0xfc00 // unique local
                || first & 0xff80 == 0xfe80 // link-local and site-local
                || first & 0xff00 == 0xff00; // multicast
            !is_special && first & 0xe000 == 0x2000 // what is given out at all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "2001:db8::1",
            "2001::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn ordinary_addresses_are_public() {
        for text in ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }
}
