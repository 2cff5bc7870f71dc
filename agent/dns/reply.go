package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
)

const (
	// ttl is how many seconds a resolver may remember a reply. It is short, because instances come and
	// go at any time.
	ttl = 1
	// maxRecords bounds the records of a reply.
	maxRecords = 64
	// maxText bounds one string of a TXT record.
	maxText = 255
)

// Reply returns the reply to a message. The record types are:
//
//	A, AAAA  the addresses of the instances in the nearest region that has any
//	SRV      addresses and ports of all regions, the nearest with the lowest priority number
//	TXT      why the instances come in this order, and how old the answer is
func Reply(store *discovery.Store, r *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	if o := r.IsEdns0(); o != nil {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	if r.Opcode != dns.OpcodeQuery || len(r.Question) != 1 {
		return m.SetRcode(r, dns.RcodeNotImplemented)
	}
	q := r.Question[0]
	if q.Qclass != dns.ClassINET || !catalog.InDomain(q.Name) {
		m.Authoritative = false
		m.Rcode = dns.RcodeRefused
		return m
	}
	name, err := catalog.ParseName(q.Name)
	switch {
	case err != nil:
		m.Rcode = dns.RcodeNameError
	case name.Address.IsValid():
		m.Answer = addressRecords(q, []netip.Addr{name.Address})
	case name.Service != "":
		answer(m, store, q, name)
	case q.Qtype == dns.TypeSOA && strings.EqualFold(strings.TrimSuffix(q.Name, "."), catalog.Domain):
		m.Answer = []dns.RR{soa()}
		return m
	}
	if len(m.Answer) == 0 && m.Rcode != dns.RcodeServerFailure {
		m.Ns = []dns.RR{soa()} // says how long a resolver may remember that there is nothing
	}
	return m
}

// answer fills in the records of a service.
func answer(m *dns.Msg, store *discovery.Store, q dns.Question, name catalog.Name) {
	a, err := store.Answer(name.Namespace, name.Service, name.Tag, "", nil)
	if err != nil {
		m.Rcode = dns.RcodeServerFailure
		return
	}
	if len(a.Regions) == 0 {
		m.Rcode = dns.RcodeNameError
		return
	}
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		m.Answer = addressRecords(q, addresses(a.Regions[0].Instances))
	case dns.TypeSRV:
		serviceRecords(m, q, a.Regions)
	case dns.TypeTXT:
		text := fmt.Sprintf("%s; confirmed %s ago", a.Chosen, a.Age.Round(time.Second))
		m.Answer = []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{text[:min(len(text), maxText)]}}}
	}
}

// addresses returns the addresses of instances, each once.
func addresses(of []*catalog.Instance) []netip.Addr {
	var out []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, i := range of {
		if at, err := netip.ParseAddr(i.Address); err == nil && !seen[at] {
			seen[at], out = true, append(out, at)
		}
	}
	return out
}

// addressRecords returns the addresses that have the type of the question.
func addressRecords(q dns.Question, all []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, at := range all {
		if r := addressRecord(q.Name, at); r.Header().Rrtype == q.Qtype && len(out) < maxRecords {
			out = append(out, r)
		}
	}
	return out
}

func addressRecord(name string, at netip.Addr) dns.RR {
	if at.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: net.IP(at.AsSlice())}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: net.IP(at.AsSlice())}
}

// serviceRecords adds the SRV records of all regions, and the addresses of their targets.
func serviceRecords(m *dns.Msg, q dns.Question, regions []catalog.RegionInstances) {
	seen := map[netip.Addr]bool{}
	for rank, r := range regions {
		for _, i := range r.Instances {
			at, err := netip.ParseAddr(i.Address)
			if err != nil || len(m.Answer) == maxRecords {
				continue
			}
			target := catalog.AddressName(at)
			m.Answer = append(m.Answer, &dns.SRV{
				Hdr: header(q.Name, dns.TypeSRV), Priority: uint16(min(rank, 1<<16-1)), Weight: 1, Port: uint16(i.Port), Target: target,
			})
			if !seen[at] {
				seen[at], m.Extra = true, append(m.Extra, addressRecord(target, at))
			}
		}
	}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// soa returns the record of the domain's authority.
func soa() dns.RR {
	zone := catalog.Domain + "."
	return &dns.SOA{
		Hdr: header(zone, dns.TypeSOA), Ns: "agent." + zone, Mbox: "root." + zone, Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: ttl,
	}
}
