package gossip

import (
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

// FuzzMembers: whatever members say of themselves, a server knows a bounded number of them with texts of
// bounded size, each by its own name. No member changes what the server says of itself.
func FuzzMembers(f *testing.F) {
	good, err := encode(Meta{ID: "s1", Name: "jkt-1", GRPC: "10.0.0.1:1", Raft: "10.0.0.1:2", Probe: "10.0.0.1:3", Expect: 3, Started: 7})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("s1", good, true)
	f.Add("s2", good, true)
	f.Add("me", []byte(`{"i":"me","n":"thief","s":9}`), true)
	f.Add("m1", []byte(`{"i":"m1","n":"other"}`), false)
	f.Add("s1", []byte(`{"i":"s1","n":"`+strings.Repeat("n", 2000)+`"}`), true)
	f.Add("", []byte("{}"), true)
	f.Fuzz(func(t *testing.T, name string, meta []byte, alive bool) {
		g := &Group{cfg: Config{Logger: slog.New(slog.DiscardHandler)}, addr: "10.0.0.9:1", local: Meta{ID: "me", Name: "I"}, members: map[string]Member{}}
		see := func(name string, meta []byte, alive bool) {
			n := &memberlist.Node{Name: name, Addr: net.IPv4(10, 0, 0, 1), Port: 1, Meta: meta}
			if (delegate{g}).NotifyAlive(n) == nil {
				g.observe(n, alive)
			}
		}
		for i := range maxMembers - 1 {
			id := "m" + strconv.Itoa(i)
			see(id, []byte(`{"i":"`+id+`"}`), true)
		}
		before := g.Members()
		see(name, meta, alive)
		after := g.Members()
		if len(g.members) > maxMembers || len(g.Missing()) > maxMembers {
			t.Fatalf("%d members, %d addresses", len(g.members), len(g.Missing()))
		}
		for _, m := range after {
			if m.ID == "me" && (m.Meta != g.local || m.Gossip != g.addr || !m.Alive) {
				t.Fatalf("this server is %+v", m)
			}
			texts := m.ID + m.Name + m.GRPC + m.Raft + m.Probe + m.Agents + m.Cluster + m.Candidates + m.Version
			if len(texts) > 3*memberlist.MetaMaxSize { // a byte that is not UTF-8 becomes three
				t.Fatalf("member %.20q says %d bytes", m.ID, len(texts))
			}
			if m.ID != name && !slices.ContainsFunc(before, func(old Member) bool { return old.Meta == m.Meta }) {
				t.Fatalf("%q changes the member %+v", name, m)
			}
		}
	})
}
