package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// clock is a clock that a test can set.
type clock struct{ now time.Duration }

func (c *clock) read() time.Duration { return c.now }

func instance(region, service string, index int32) *catalog.Instance {
	return &catalog.Instance{
		Namespace: "default", Service: service, Region: region, Node: "n1", Address: "10.0.0.1", Port: 20000 + index,
		Alloc: fmt.Sprintf("%s-%d", region, index), Job: "api", Group: "web", Index: index,
	}
}

// show returns the keys of all instances of a store.
func show(s *Store) string {
	var out []string
	for region := range s.Positions("") {
		for _, k := range s.Keys(region) {
			out = append(out, region+":"+k)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// pass moves messages from a follower to an inbox until there is nothing to send or n messages were
// moved. n < 0: all.
func pass(t interface{ Fatal(...any) }, f *follower, in *Inbox, n int) {
	for ; n != 0; n-- {
		m := f.next(true)
		if m == nil {
			return
		}
		if m.GetRegions() != nil {
			in.store.SetRoster(RosterFrom(m.GetRegions(), "", in.store.clock()))
			continue
		}
		if _, err := in.Add(m); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCopiesConverge: two regions change their instances and get new masters, the server between them
// and a receiver is replaced by an empty one, and connections break at any message. At the end the
// receiver has what the regions have. A new server never takes anything from the receiver.
func TestCopiesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &clock{}
		names := []string{"a", "b"}
		regions := map[string]*Store{}
		terms := 0
		begin := func(name string, keep []*catalog.Instance) {
			terms++
			if regions[name] == nil {
				regions[name] = New(c.read)
				regions[name].SetRoster(Roster{Own: name, Regions: []Region{{Name: name}}})
			}
			if err := regions[name].Begin(name, fmt.Sprintf("%s/%d", name, terms), keep); err != nil {
				t.Fatal(err)
			}
		}
		model := map[string]map[int32]bool{}
		for _, n := range names {
			begin(n, nil)
			model[n] = map[int32]bool{}
		}
		present := func(n string) (out []*catalog.Instance) {
			for i := range model[n] {
				out = append(out, instance(n, "web", i))
			}
			return out
		}
		roster := Roster{Regions: []Region{{Name: "a"}, {Name: "b"}}}
		middle, receiver := New(c.read), New(c.read)
		middle.SetRoster(roster)
		up, upIn := map[string]*follower{}, map[string]*Inbox{}
		var down *follower
		var downIn *Inbox
		connectUp := func(n string) {
			up[n] = newFollower(regions[n], map[string]link.Position{n: middle.Position(n)})
			up[n].only = n
			up[n].hasRoster, up[n].sent = true, regions[n].Roster()
			upIn[n] = NewInbox(middle)
		}
		connectDown := func() {
			down, downIn = newFollower(middle, receiver.Positions("")), NewInbox(receiver)
		}
		for _, n := range names {
			connectUp(n)
		}
		connectDown()
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			n := rapid.SampledFrom(names).Draw(t, "region")
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1:
				i := rapid.Int32Range(0, 5).Draw(t, "put")
				model[n][i] = true
				if err := regions[n].Update(n, []*catalog.Instance{instance(n, "web", i)}, nil); err != nil {
					t.Fatal(err)
				}
			case 2:
				i := rapid.Int32Range(0, 5).Draw(t, "remove")
				delete(model[n], i)
				if err := regions[n].Update(n, nil, []string{instance(n, "web", i).Key()}); err != nil {
					t.Fatal(err)
				}
			case 3:
				pass(t, up[n], upIn[n], rapid.IntRange(0, 2).Draw(t, "up"))
				pass(t, down, downIn, rapid.IntRange(0, 2).Draw(t, "down"))
			case 4:
				begin(n, present(n))
				connectUp(n)
			case 5:
				connectUp(n)
				connectDown()
			case 6:
				before := show(receiver)
				middle = New(c.read)
				middle.SetRoster(roster)
				connectDown()
				pass(t, down, downIn, -1)
				if after := show(receiver); after != before {
					t.Fatalf("an empty server changed the receiver: %s, was %s", after, before)
				}
				for _, n := range names {
					connectUp(n)
				}
			}
		}
		for _, n := range names {
			pass(t, up[n], upIn[n], -1)
		}
		pass(t, down, downIn, -1)
		var want []string
		for _, n := range names {
			for _, i := range present(n) {
				want = append(want, n+":"+i.Key())
			}
		}
		slices.Sort(want)
		if got := show(receiver); got != strings.Join(want, " ") {
			t.Fatalf("the receiver has %s, want %v", got, want)
		}
		if receiver.Len() != len(want) || len(receiver.find("default", "web")) != len(want) {
			t.Fatalf("%d and %d instances are counted, want %d", receiver.Len(), len(receiver.find("default", "web")), len(want))
		}
	})
}

func TestRegionsThatAreGoneAreForgotten(t *testing.T) {
	s := New((&clock{}).read)
	if err := errors.Join(s.Begin("a", "e", []*catalog.Instance{instance("a", "web", 0)}), s.Begin("b", "e", []*catalog.Instance{instance("b", "web", 0)})); err != nil {
		t.Fatal(err)
	}
	s.SetRoster(Roster{Own: "a", Regions: []Region{{Name: "a"}}})
	if got := show(s); got != "a:a-0/web" {
		t.Errorf("got %s", got)
	}
}

func TestBoundsAreErrors(t *testing.T) {
	s := New((&clock{}).read)
	all := make([]*catalog.Instance, MaxRegionInstances+1)
	for i := range all {
		all[i] = instance("a", "web", int32(i))
	}
	if err := s.Begin("a", "e", all); !errors.Is(err, ErrFull) || s.Len() != MaxRegionInstances {
		t.Errorf("%d instances, %v", s.Len(), err)
	}
	// One may still be replaced, and after a removal there is room again.
	changed := instance("a", "web", 0)
	changed.Port = 9
	if err := s.Update("a", []*catalog.Instance{changed}, nil); err != nil {
		t.Error(err)
	}
	if err := s.Update("a", all[MaxRegionInstances:], []string{all[1].Key()}); err != nil || s.Len() != MaxRegionInstances {
		t.Errorf("%d instances, %v", s.Len(), err)
	}
	in := NewInbox(New((&clock{}).read))
	for name, m := range map[string]*nusav1.ServiceChanges{
		"another region":    {Region: "b", Instances: []*nusav1.ServiceInstance{instanceToProto(instance("a", "web", 0))}},
		"malformed":         {Region: "a", Instances: []*nusav1.ServiceInstance{{Region: "a"}}},
		"delta before full": {Region: "a", Position: &nusav1.Position{Epoch: "e", Sequence: 2}},
		"no region":         {Full: true, Last: true},
	} {
		if _, err := in.Add(m); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestAges: an answer says how long ago it was confirmed, whatever is away.
func TestAges(t *testing.T) {
	c := &clock{now: time.Hour}
	s := New(c.read)
	if _, err := s.Answer("default", "web", "", "", nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("an empty store answers: %v", err)
	}
	roster := Roster{Own: "a", Regions: []Region{{Name: "a"}, {Name: "b", Distance: catalog.Distance{RTT: 12 * time.Millisecond, Source: topology.Measured}}}}
	s.SetRoster(roster)
	if err := errors.Join(s.Begin("a", "e", []*catalog.Instance{instance("a", "web", 0)}), s.Begin("b", "e", []*catalog.Instance{instance("b", "web", 0)})); err != nil {
		t.Fatal(err)
	}
	ages := func() string {
		a, err := s.Answer("default", "web", "", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(a.Chosen, " ", a.Ages)
	}
	expect := func(when, want string) {
		t.Helper()
		if got := ages(); got != "1 instance in this region; next b 12 ms measured "+want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	expect("all is connected", "[0s 0s]")
	silent := roster
	silent.Silent, silent.Since = true, c.now-time.Minute
	s.SetRoster(silent)
	expect("the global tier is away", "[0s 1m0s]")
	c.now += time.Second
	later := silent
	later.Since = c.now
	s.SetRoster(later)
	expect("it is still away", "[0s 1m1s]")
	lost := roster
	lost.Regions = slices.Clone(roster.Regions)
	lost.Regions[1].Silent, lost.Regions[1].Since = true, c.now-2*time.Minute
	s.SetRoster(lost)
	expect("the other region is away", "[0s 2m0s]")
	s.SetRoster(roster)
	s.Disconnected()
	c.now += 3 * time.Second
	s.Disconnected()
	expect("the master is away", "[3s 3s]")

	path := filepath.Join(t.TempDir(), "services")
	again := New(c.read)
	if err := Load(again, path, "a"); err != nil {
		t.Errorf("a missing file: %v", err)
	}
	if err := write(s, path); err != nil {
		t.Fatal(err)
	}
	if err := Load(again, path, "a"); err != nil {
		t.Fatal(err)
	}
	if show(again) != show(s) || again.Position("b") != s.Position("b") {
		t.Errorf("loaded %s at %v", show(again), again.Position("b"))
	}
	a, err := again.Answer("default", "web", "", "", nil)
	if err != nil || a.Chosen != "1 instance in this region; next b 12 ms measured" || a.Age < 3*time.Second || a.Age > time.Minute {
		t.Errorf("after a restart: %+v, %v", a, err)
	}
	again.Connected()
	if a, _ := again.Answer("default", "web", "", "", nil); a.Age != 0 {
		t.Errorf("age %v after a connection", a.Age)
	}
}

// fill makes a store full except for some instances.
func fill(t *testing.T, s *Store, left int) {
	t.Helper()
	for n := range MaxInstances / MaxRegionInstances {
		name := fmt.Sprintf("other%d", n)
		all := make([]*catalog.Instance, min(MaxRegionInstances, MaxInstances-left-n*MaxRegionInstances))
		for i := range all {
			all[i] = instance(name, "web", int32(i))
		}
		if err := s.Begin(name, "e", all); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChangeThatDoesNotFit: the instances that fit are there, and removals count. Once there is room, the others come
// with the next connection, although the region does not change any more.
func TestChangeThatDoesNotFit(t *testing.T) {
	for _, full := range []bool{false, true} {
		region, server, receiver := New((&clock{}).read), New((&clock{}).read), New((&clock{}).read)
		fill(t, server, 2)
		server.SetRoster(Roster{Regions: []Region{{Name: "a"}, {Name: "other0"}, {Name: "other1"}, {Name: "other2"}, {Name: "other3"}, {Name: "other4"}}})
		connect := func() error {
			f, in := newFollower(region, map[string]link.Position{"a": server.Position("a")}), NewInbox(server)
			for m := f.next(false); m != nil; m = f.next(false) {
				if _, err := in.Add(m); err != nil {
					return err
				}
			}
			return nil
		}
		four := []*catalog.Instance{instance("a", "web", 0), instance("a", "web", 1), instance("a", "web", 2), instance("a", "web", 3)}
		first := 1
		if full {
			first = 4
		}
		_ = region.Begin("a", "1", four[:first])
		err := connect()
		if !full {
			if err != nil {
				t.Fatal(err)
			}
			_ = region.Update("a", four[1:], []string{four[0].Key()})
			err = connect()
		}
		if !errors.Is(err, ErrFull) {
			t.Fatalf("four instances where two fit: %v", err)
		}
		has := func(s *Store) int { return len(s.Keys("a")) }
		if has(server) != 2 || server.Len() != MaxInstances {
			t.Errorf("%d instances where two fit, %d in all", has(server), server.Len())
		}
		down := newFollower(server, nil)
		pass(t, down, NewInbox(receiver), -1)
		if err := connect(); !errors.Is(err, ErrFull) || has(server) != 2 {
			t.Errorf("another connection while there is no room: %v, %d instances", err, has(server))
		}
		if m := down.next(true); m != nil {
			t.Errorf("the receiver gets again what it has: %d instances", len(m.GetInstances()))
		}
		server.SetRoster(Roster{Regions: []Region{{Name: "a"}}})
		if err := connect(); err != nil || show(server) != show(region) {
			t.Errorf("with room: %v, the server has %s, the region %s", err, show(server), show(region))
		}
		pass(t, down, NewInbox(receiver), -1)
		if show(receiver) != show(region) {
			t.Errorf("the receiver has %s, the region %s", show(receiver), show(region))
		}
	}
}

// TestMasterIgnoresAnEarlierOne: the stream from the master before may end after the new term has begun.
func TestMasterIgnoresAnEarlierOne(t *testing.T) {
	c := &clock{now: time.Hour}
	s := New(c.read)
	s.SetRoster(Roster{Own: "a", Regions: []Region{{Name: "a"}, {Name: "b"}}})
	in := NewInbox(s)
	if _, err := in.Add(&nusav1.ServiceChanges{Region: "a", Full: true, Last: true, Position: &nusav1.Position{Epoch: "1", Sequence: 4}}); err != nil {
		t.Fatal(err)
	}
	s.Lead(true)
	if err := s.Begin("a", "2", []*catalog.Instance{instance("a", "web", 0)}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Add(&nusav1.ServiceChanges{Region: "a", Full: true, Last: true, Position: &nusav1.Position{Epoch: "1", Sequence: 5}}); err == nil || show(s) != "a:a-0/web" {
		t.Errorf("the earlier master has changed the instances: %v, %s", err, show(s))
	}
	s.Disconnected()
	c.now += time.Hour
	if a, err := s.Answer("default", "web", "", "", nil); err != nil || a.Age != 0 {
		t.Errorf("the age at the master is %v, %v", a.Age, err)
	}
	s.Lead(false)
	// A connection to another master begins before the one to the master before has ended.
	s.Connected()
	s.Connected()
	s.Disconnected()
	c.now += time.Minute
	if a, err := s.Answer("default", "web", "", "", nil); err != nil || a.Age != 0 {
		t.Errorf("the age with a connection is %v, %v", a.Age, err)
	}
	s.Disconnected()
	c.now += time.Minute
	if a, err := s.Answer("default", "web", "", "", nil); err != nil || a.Age != time.Minute {
		t.Errorf("the age without a master is %v, %v", a.Age, err)
	}
}

// TestRegionComesBeforeTheList: a region publishes before the list of regions has it. A receiver whose list
// changes meanwhile does not miss the region's instances.
func TestRegionComesBeforeTheList(t *testing.T) {
	server, receiver := New((&clock{}).read), New((&clock{}).read)
	server.SetRoster(Roster{Regions: []Region{{Name: "a"}}})
	f, in := newFollower(server, nil), NewInbox(receiver)
	pass(t, f, in, -1)
	if err := server.Begin("b", "1", []*catalog.Instance{instance("b", "web", 0)}); err != nil {
		t.Fatal(err)
	}
	pass(t, f, in, -1)
	receiver.SetRoster(Roster{Regions: []Region{{Name: "a", Silent: true}}})
	server.SetRoster(Roster{Regions: []Region{{Name: "a"}, {Name: "b"}}})
	pass(t, f, in, -1)
	if got := show(receiver); got != "b:b-0/web" {
		t.Errorf("the receiver has %q", got)
	}
	// It is forgotten, and publishes the same again, before the receiver knows it.
	server.SetRoster(Roster{Regions: []Region{{Name: "a"}}})
	pass(t, f, in, 1)
	if err := server.Begin("b", "1", []*catalog.Instance{instance("b", "web", 0)}); err != nil {
		t.Fatal(err)
	}
	server.SetRoster(Roster{Regions: []Region{{Name: "a"}, {Name: "b"}}})
	pass(t, f, in, -1)
	if got := show(receiver); got != "b:b-0/web" {
		t.Errorf("after it was forgotten, the receiver has %q", got)
	}
}

// TestListHasPages: the pages of every limit have each service once and in order, and a page with instances has few
// services if these have many. Services that the caller may not read are on no page.
func TestListHasPages(t *testing.T) {
	s := New((&clock{}).read)
	s.SetRoster(Roster{Regions: []Region{{Name: "a"}, {Name: "b"}}})
	var want []string
	var all []*catalog.Instance
	for n := range 9 {
		i := instance("a", fmt.Sprint("s-", n), int32(n))
		i.Namespace = []string{"blue", "green", "red"}[n/3]
		all = append(all, i)
		if i.Namespace != "green" {
			want = append(want, i.Namespace+"/"+i.Service)
		}
	}
	var many []*catalog.Instance
	for n := range int32(6000) { // 3,000 more for the first service of blue, and as many for that of red
		i := instance("b", []string{"s-0", "s-6"}[n%2], n)
		i.Namespace = []string{"blue", "red"}[n%2]
		many = append(many, i)
	}
	if err := s.Begin("b", "1", many); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin("a", "1", all); err != nil {
		t.Fatal(err)
	}
	read := func(req *nusav1.ListServicesRequest) (got []string, pages int) {
		for {
			page, err := s.List(req, func(namespace, _ string) bool { return namespace != "green" })
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range page.GetServices() {
				got = append(got, v.GetNamespace()+"/"+v.GetName())
			}
			pages++
			req.PageToken = page.GetNextPageToken()
			if req.PageToken == "" {
				return got, pages
			}
		}
	}
	for limit := range int32(8) {
		got, pages := read(&nusav1.ListServicesRequest{Limit: limit})
		if most := cmp.Or(int(limit), pageServices); !slices.Equal(got, want) || pages != (len(want)+most-1)/most {
			t.Errorf("limit %d: %d pages with %v", limit, pages, got)
		}
	}
	if got, pages := read(&nusav1.ListServicesRequest{WithInstances: true}); !slices.Equal(got, want) || pages != 2 {
		t.Errorf("with instances: %d pages with %v", pages, got)
	}
	if got, _ := read(&nusav1.ListServicesRequest{Limit: 1, Namespace: "red", Name: "s-7"}); !slices.Equal(got, []string{"red/s-7"}) {
		t.Errorf("one service: %v", got)
	}
	for tag, want := range map[string]string{"": "", "canary": "red/s-6 red/s-7", "none": ""} {
		if tag == "canary" { // the list of services changes
			tagged := make([]*catalog.Instance, 0, 2)
			for n := range int32(2) {
				i := instance("a", fmt.Sprint("s-", 6+n), n)
				i.Namespace, i.Tags = "red", []string{"canary"}
				tagged = append(tagged, i)
			}
			if err := s.Begin("a", "2", tagged); err != nil {
				t.Fatal(err)
			}
		}
		got, pages := read(&nusav1.ListServicesRequest{Limit: 1, Tag: tag})
		if tag != "" && (strings.Join(got, " ") != want || pages != max(1, len(got))) {
			t.Errorf("tag %q: %d pages with %v", tag, pages, got)
		}
	}
	for _, wrong := range []*nusav1.ListServicesRequest{{Limit: -1}, {Limit: pageServices + 1}, {PageToken: "red"}, {PageToken: "/"}, {PageToken: "a/b/c"}} {
		if _, err := s.List(wrong, nil); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}
