package catalog

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// Domain is the DNS domain of all services, and ServiceLabel and AddressLabel the names below it.
const (
	Domain       = "nusa"
	ServiceLabel = "service"
	AddressLabel = "addr"
)

// Name is what a DNS name stands for: a service, or the address of an instance. The zero Name stands
// for a name that exists and has no records of its own, such as the domain.
type Name struct {
	Service, Namespace, Tag string
	Address                 netip.Addr
}

// InDomain reports whether a DNS name, with or without a final dot, is the domain or below it.
func InDomain(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	return name == Domain || strings.HasSuffix(name, "."+Domain)
}

// ParseName reads a DNS name in the domain, in any case and with or without a final dot:
//
//	web.default.service.nusa       the service web in the namespace default
//	blue.web.default.service.nusa  its instances with the tag blue
//	0a000001.addr.service.nusa     the address 10.0.0.1
//
// Any other name is ErrInvalid.
func ParseName(name string) (Name, error) {
	text := strings.TrimSuffix(strings.ToLower(name), ".")
	invalid := fmt.Errorf("%w name %.255q: services are at NAME.NAMESPACE.%s.%s", ErrInvalid, name, ServiceLabel, Domain)
	if !InDomain(text) {
		return Name{}, invalid
	}
	labels := strings.Split(text, ".")
	labels = labels[:len(labels)-1]
	if len(labels) == 0 {
		return Name{}, nil
	}
	if labels[len(labels)-1] != ServiceLabel {
		return Name{}, invalid
	}
	labels = labels[:len(labels)-1]
	for _, l := range labels {
		if !IsLabel(l) {
			return Name{}, invalid
		}
	}
	switch {
	case len(labels) == 2 && labels[1] == AddressLabel:
		raw, err := hex.DecodeString(labels[0])
		if addr, ok := netip.AddrFromSlice(raw); ok && err == nil {
			return Name{Address: addr}, nil
		}
		return Name{Service: labels[0], Namespace: labels[1]}, nil
	case len(labels) == 2:
		return Name{Service: labels[0], Namespace: labels[1]}, nil
	case len(labels) == 3:
		return Name{Service: labels[1], Namespace: labels[2], Tag: labels[0]}, nil
	case len(labels) < 2:
		return Name{}, nil
	}
	return Name{}, invalid
}

// AddressName returns the DNS name of an address, with a final dot. SRV records need a name.
func AddressName(a netip.Addr) string {
	return hex.EncodeToString(a.AsSlice()) + "." + AddressLabel + "." + ServiceLabel + "." + Domain + "."
}
