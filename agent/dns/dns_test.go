package dns_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	agentdns "github.com/nusa-scheduler/nusa/agent/dns"
	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/topology"
)

func instance(region, address string, index int32, tags ...string) *catalog.Instance {
	return &catalog.Instance{
		Namespace: "default", Service: "web", Tags: tags, Region: region, Node: "n1", Address: address, Port: 20000 + index,
		Alloc: fmt.Sprintf("%s-%d", region, index), Job: "api", Group: "web", Index: index,
	}
}

// store returns a copy with instances in two regions. The turn of its next answer is 1.
func store(t *testing.T) *discovery.Store {
	s := discovery.New(func() time.Duration { return 0 })
	s.SetRoster(discovery.Roster{Own: "singapore", Regions: []discovery.Region{
		{Name: "singapore"}, {Name: "jakarta", Distance: catalog.Distance{RTT: 12 * time.Millisecond, Source: topology.Measured}},
	}})
	for region, of := range map[string][]*catalog.Instance{
		"singapore": {instance("singapore", "10.0.0.1", 0), instance("singapore", "10.0.0.1", 1), instance("singapore", "fd00::1", 2)},
		"jakarta":   {instance("jakarta", "10.1.0.1", 0, "blue")},
	} {
		if err := s.Begin(region, "e", of); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// show returns the code and the records of a reply, without their times to live.
func show(m *dns.Msg) string {
	out := []string{dns.RcodeToString[m.Rcode]}
	for _, part := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, r := range part {
			if r.Header().Rrtype != dns.TypeOPT {
				out = append(out, strings.Join(strings.Fields(strings.ReplaceAll(r.String(), "\t1\tIN\t", " ")), " "))
			}
		}
	}
	return strings.Join(out, "\n")
}

const nothing = "nusa. SOA agent.nusa. root.nusa. 1 3600 600 86400 1"

func TestRepliesOfARealServer(t *testing.T) {
	t.Parallel()
	addr := serve(t, store(t))
	for _, network := range []string{"udp", "tcp"} {
		client := &dns.Client{Net: network, Timeout: time.Minute}
		for _, c := range []struct {
			name string
			kind uint16
			want string
		}{
			{"web.default.service.nusa.", dns.TypeA, "NOERROR\nweb.default.service.nusa. A 10.0.0.1"},
			{"WEB.default.service.nusa.", dns.TypeAAAA, "NOERROR\nWEB.default.service.nusa. AAAA fd00::1"},
			{"blue.web.default.service.nusa.", dns.TypeA, "NOERROR\nblue.web.default.service.nusa. A 10.1.0.1"},
			{"blue.web.default.service.nusa.", dns.TypeSRV, "NOERROR\nblue.web.default.service.nusa. SRV 0 1 20000 0a010001.addr.service.nusa.\n0a010001.addr.service.nusa. A 10.1.0.1"},
			{"0a010001.addr.service.nusa.", dns.TypeA, "NOERROR\n0a010001.addr.service.nusa. A 10.1.0.1"},
			{"0a010001.addr.service.nusa.", dns.TypeAAAA, "NOERROR\n" + nothing},
			{"web.default.service.nusa.", dns.TypeTXT, `NOERROR` + "\n" + `web.default.service.nusa. TXT "3 instances in this region; next jakarta 12 ms measured; confirmed 0s ago"`},
			{"blue.web.default.service.nusa.", dns.TypeTXT, `NOERROR` + "\n" + `blue.web.default.service.nusa. TXT "none in this region; 1 instance in jakarta, 12 ms measured; confirmed 0s ago"`},
			{"web.default.service.nusa.", dns.TypeMX, "NOERROR\n" + nothing},
			{"api.default.service.nusa.", dns.TypeA, "NXDOMAIN\n" + nothing},
			{"web.other.service.nusa.", dns.TypeA, "NXDOMAIN\n" + nothing},
			{"green.web.default.service.nusa.", dns.TypeA, "NXDOMAIN\n" + nothing},
			{"a.b.c.d.service.nusa.", dns.TypeA, "NXDOMAIN\n" + nothing},
			{"service.nusa.", dns.TypeA, "NOERROR\n" + nothing},
			{"nusa.", dns.TypeSOA, "NOERROR\n" + nothing},
			{"example.com.", dns.TypeA, "REFUSED"},
		} {
			m, _, err := client.Exchange(new(dns.Msg).SetQuestion(c.name, c.kind), addr)
			if err != nil {
				t.Fatalf("%s %s: %v", network, c.name, err)
			}
			if got := show(m); got != c.want {
				t.Errorf("%s %s %s: got\n%s\nwant\n%s", network, c.name, dns.TypeToString[c.kind], got, c.want)
			}
		}
	}
}

// serve runs a server on loopback and returns its address.
func serve(t *testing.T, s *discovery.Store) string {
	t.Helper()
	server, err := agentdns.Listen(t.Context(), network.Host(), "127.0.0.1:0", s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return server.Addr()
}

// TestSRVPrefersTheNearestRegion: other regions follow with a higher priority number.
func TestSRVPrefersTheNearestRegion(t *testing.T) {
	m := agentdns.Reply(store(t), new(dns.Msg).SetQuestion("web.default.service.nusa.", dns.TypeSRV))
	var got []string
	for _, r := range m.Answer {
		srv := r.(*dns.SRV)
		got = append(got, fmt.Sprintf("%d %s:%d", srv.Priority, strings.Split(srv.Target, ".")[0], srv.Port))
	}
	want := "[0 0a000001:20001 0 fd000000000000000000000000000001:20002 0 0a000001:20000 1 0a010001:20000]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestManyInstances: a reply over UDP that does not fit says so, and the client asks again over TCP.
func TestManyInstances(t *testing.T) {
	t.Parallel()
	s := store(t)
	var many []*catalog.Instance
	for i := range int32(200) {
		many = append(many, instance("singapore", fmt.Sprintf("10.0.1.%d", i), 10+i))
	}
	if err := s.Update("singapore", many, nil); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, s)
	ask := new(dns.Msg).SetQuestion("web.default.service.nusa.", dns.TypeA)
	m, _, err := (&dns.Client{Timeout: time.Minute}).Exchange(ask, addr)
	if err != nil || !m.Truncated || len(m.Answer) == 0 {
		t.Errorf("UDP: truncated %v, %d records, %v", m.Truncated, len(m.Answer), err)
	}
	large := new(dns.Msg).SetQuestion("web.default.service.nusa.", dns.TypeSRV)
	large.SetEdns0(dns.DefaultMsgSize, false)
	m, _, err = (&dns.Client{Timeout: time.Minute}).Exchange(large, addr)
	m.Compress = true // as it was sent
	if err != nil || m.Len() > 1232 {
		t.Errorf("UDP with a large size: %d bytes, %v", m.Len(), err)
	}
	m, _, err = (&dns.Client{Net: "tcp", Timeout: time.Minute}).Exchange(ask, addr)
	if err != nil || m.Truncated || len(m.Answer) != 64 {
		t.Errorf("TCP: truncated %v, %d records, %v", m.Truncated, len(m.Answer), err)
	}
}

func TestNoAnswerBeforeTheFirstCopy(t *testing.T) {
	empty := discovery.New(func() time.Duration { return 0 })
	if m := agentdns.Reply(empty, new(dns.Msg).SetQuestion("web.default.service.nusa.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %s", dns.RcodeToString[m.Rcode])
	}
	status := new(dns.Msg).SetQuestion("web.default.service.nusa.", dns.TypeA)
	status.Opcode = dns.OpcodeStatus
	if m := agentdns.Reply(empty, status); m.Rcode != dns.RcodeNotImplemented {
		t.Errorf("got %s", dns.RcodeToString[m.Rcode])
	}
}

// FuzzReply: no message makes the server fail, and each reply can be encoded.
func FuzzReply(f *testing.F) {
	for _, name := range []string{"web.default.service.nusa.", "0a010001.addr.service.nusa.", "nusa.", "."} {
		raw, err := new(dns.Msg).SetQuestion(name, dns.TypeSRV).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	s := discovery.New(func() time.Duration { return 0 })
	s.SetRoster(discovery.Roster{Own: "singapore", Regions: []discovery.Region{{Name: "singapore"}}})
	if err := s.Begin("singapore", "e", []*catalog.Instance{instance("singapore", "10.0.0.1", 0)}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		ask := new(dns.Msg)
		if ask.Unpack(raw) != nil {
			return
		}
		if _, err := agentdns.Reply(s, ask).Pack(); err != nil {
			t.Error(err)
		}
	})
}
