package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDemandAndAccountsFollowTheRecords: after any changes of jobs, slots, regions and reports, the
// counts and the accounts equal those computed from the present records.
func TestDemandAndAccountsFollowTheRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		st := randomState()
		for range 200 {
			st.change(d)
			st.check(t)
		}
	})
}

type changingState struct {
	*State
	revision int64
}

func randomState() *changingState {
	return &changingState{State: New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })}
}

func (st *changingState) next() int64 { st.revision++; return st.revision }

func (st *changingState) change(d *rand.Rand) {
	k := JobKey{"default", fmt.Sprintf("job%d", d.IntN(3))}
	name := fmt.Sprintf("region%d", d.IntN(3))
	switch d.IntN(9) {
	case 0: // a version, stopped or not
		st.applyJob(k.String(), recordOfMessage(randomRecord(d, k)), st.next())
	case 1:
		st.applyJob(k.String(), nil, st.next())
	case 2, 3, 4: // a slot of its own indices, as the placer and the regions write them
		from := d.IntN(6)
		s := region.Slot{Namespace: k.Namespace, Job: k.Name, Group: [2]string{"api", "web"}[d.IntN(2)], From: from, To: from + 1, Region: name,
			State: [3]region.SlotState{region.Offered, region.Accepted, region.Done}[d.IntN(3)], Desired: region.DesiredRun, JobVersion: 1,
			Generation: max(0, st.revision-int64(d.IntN(4))), Vacant: d.IntN(8) == 0}
		if d.IntN(6) == 0 {
			s.Desired, s.ReturnTo = region.DesiredRevoke, fmt.Sprintf("region%d", d.IntN(3))
		}
		st.applySlot(s.Key(), SlotToProto(s), st.next())
	case 5:
		if j := st.Jobs[k]; j != nil {
			for _, s := range j.SortedSlots() {
				if d.IntN(2) == 0 {
					st.applySlot(s.Key(), nil, st.next())
				}
			}
		}
	case 6:
		st.applyRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}}, st.next())
	case 7:
		if d.IntN(4) == 0 {
			st.applyRegion(name, nil, st.next())
		}
	case 8: // sometimes of an earlier revision than the last one
		if r := st.Regions[name]; r != nil {
			st.TakeReport(r, &nusav1.RegionReport{NodesReady: 1, SlotsRevision: max(0, st.revision-int64(d.IntN(20))), Shape: &nusav1.RegionShape{
				Bins: []*nusav1.ShapeBin{{Nodes: 4, Free: &nusav1.Resources{CpuMilli: int64(d.IntN(8)) * 1000}, Pool: "default"}}}})
		}
	}
}

func randomRecord(d *rand.Rand, k JobKey) *nusav1.JobRecord {
	spec := &nusav1.JobSpec{Namespace: k.Namespace, Name: k.Name, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{}}
	for _, g := range []string{"api", "web"}[:1+d.IntN(2)] {
		spec.Groups[g] = &nusav1.Group{Count: proto.Int32(int32(d.IntN(7))), Tasks: map[string]*nusav1.Task{"t": {Driver: "process",
			Resources: &nusav1.Resources{CpuMilli: int64(1+d.IntN(2)) * 500}}}}
	}
	return &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Stopped: d.IntN(4) == 0}}
}

func (st *changingState) check(t *rapid.T) {
	groups, wanting := map[uint64]int{}, map[uint64]int{}
	for _, j := range st.Jobs {
		if j.Record == nil || j.Record.Stopped() {
			continue
		}
		for _, g := range j.Place().Groups {
			groups[g.AskHash]++
			owned := map[int]int{}
			n := 0
			for s := range j.Slots.All() {
				for i := s.From; i < min(s.To, g.Count) && s.Group == g.Name && !s.Vacant; i++ {
					owned[i]++
					n++
				}
			}
			if n < g.Count {
				wanting[g.AskHash]++
			}
		}
	}
	for hash, a := range st.Demand.asks {
		_, wanted := st.Demand.wanted[hash]
		if a.groups != groups[hash] || a.wanting != wanting[hash] || wanted != (wanting[hash] > 0) {
			t.Fatalf("ask %d: %d groups, %d want; counted %d, %d, wanted %v", hash, groups[hash], wanting[hash], a.groups, a.wanting, wanted)
		}
	}
	if len(groups) != len(st.Demand.asks) || len(wanting) != len(st.Demand.wanted) {
		t.Fatalf("%d asks, %d wanted; counted %d, %d", len(groups), len(wanting), len(st.Demand.asks), len(st.Demand.wanted))
	}
	for _, r := range st.Regions {
		var want place.Account
		for _, j := range st.Jobs {
			for s := range j.Slots.All() {
				for _, c := range place.ChargesOf(j.Place(), &s) {
					if c.Region == r.Name {
						want.Put(r.reported(), c)
					}
				}
			}
		}
		if have, want := fmt.Sprint(r.account.Charges()), fmt.Sprint(want.Charges()); have != want {
			t.Fatalf("the account of %s is %s, not %s", r.Name, have, want)
		}
	}
}

// TestSubscribedAsksStayKnown: a chosen ask stays part of what regions get until the next choice,
// although no job has it for a moment. If a job has the ask again at the next choice, the choice is the same,
// and the ask would not be sent again.
func TestSubscribedAsksStayKnown(t *testing.T) {
	st := randomState()
	k := JobKey{"default", "api"}
	record := &nusav1.JobRecord{Job: &nusav1.Job{Version: 1, Spec: &nusav1.JobSpec{
		Namespace: k.Namespace, Name: k.Name, Type: nusav1.JobType_JOB_TYPE_SERVICE,
		Groups: map[string]*nusav1.Group{"web": {Count: proto.Int32(1), Tasks: map[string]*nusav1.Task{"t": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 500}}}}},
	}}}
	st.applyJob(k.String(), recordOfMessage(record), st.next())
	if d := &st.Demand; !d.Subscribe() || len(d.Subscribed()) != 1 {
		t.Fatalf("chosen: %v", d.Subscribed())
	}
	st.applyJob(k.String(), nil, st.next())
	if chosen, sent := st.Demand.Subscribed(), st.Demand.Asks(st.Demand.Subscribed()); len(sent) != len(chosen) || len(st.Demand.Subscriptions().GetAsks()) != len(chosen) {
		t.Errorf("a session gets %d asks of %d and believes that its region has all", len(sent), len(chosen))
	}
	st.applyJob(k.String(), recordOfMessage(record), st.next())
	if st.Demand.Subscribe() {
		t.Error("the choice has changed")
	}
	st.applyJob(k.String(), nil, st.next())
	if d := &st.Demand; !d.Subscribe() || len(d.Subscribed()) != 0 || len(d.Subscriptions().GetAsks()) != 0 {
		t.Errorf("chosen without jobs: %v", d.Subscribed())
	}
}

// withForms returns a state with n regions. The nodes of each of them accept the fields of one of the lists.
func withForms(n int, fields ...[]string) *State {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	for i := range n {
		name := fmt.Sprintf("r%04d", i)
		st.applyRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name, Labels: map[string]string{"last": fmt.Sprint(i == n-1)}}, ClusterId: "c"}, int64(i+1))
		form := &nusav1.ConfigSchema{}
		for _, field := range fields[min(i, len(fields)-1)] {
			form.Fields = append(form.Fields, &nusav1.ConfigField{Name: field, Type: nusav1.ConfigType_CONFIG_TYPE_TEXT})
		}
		st.Forms.Set(name, &nusav1.DriverForms{Drivers: []*nusav1.DriverForm{{Driver: "vm", Forms: []*nusav1.ConfigSchema{form}}}})
	}
	return st
}

// withTasks returns a job with n tasks of the plugin vm, whose config has the field image.
func withTasks(n int, allow ...*nusav1.RegionSelector) *nusav1.JobSpec {
	config, _ := structpb.NewStruct(map[string]any{"image": "x"})
	tasks := map[string]*nusav1.Task{}
	for i := range n {
		tasks[fmt.Sprintf("t%03d", i)] = &nusav1.Task{Driver: "vm", Config: config}
	}
	return &nusav1.JobSpec{Name: "j", Groups: map[string]*nusav1.Group{"g": {Tasks: tasks, Regions: &nusav1.RegionsSpec{Allow: allow}}}}
}

// TestWrongConfigs: a config is wrong if every region refuses it which the job allows and which has the plugin.
func TestWrongConfigs(t *testing.T) {
	image, other, more := []string{"image"}, []string{"kernel"}, []string{"disk"}
	last := &nusav1.RegionSelector{Labels: map[string]string{"last": "true"}}
	unknown := withForms(2, other)
	unknown.Forms.Remove("r0001")
	lost := withForms(2, other, image)
	lost.Regions["r0001"].Record.Lost = &nusav1.LostRegion{}
	for name, c := range map[string]struct {
		st    *State
		tasks int
		allow []*nusav1.RegionSelector
		want  []string
	}{
		"one region accepts it":           {withForms(3, other, image), 1, nil, nil},
		"all refuse it":                   {withForms(3, other, more), 2, nil, []string{"unknown field, known here are kernel (driver vm in region r0000 and 2 more)", "unknown field, known here are kernel (driver vm in region r0000 and 2 more)"}},
		"the allowed region refuses it":   {withForms(3, image, image, other), 1, []*nusav1.RegionSelector{last}, []string{"unknown field, known here are kernel (driver vm in region r0002)"}},
		"the allowed region accepts it":   {withForms(3, other, other, image), 1, []*nusav1.RegionSelector{last}, nil},
		"a region has not sent its forms": {unknown, 1, nil, nil},
		"the region that accepts is lost": {lost, 1, nil, []string{"unknown field, known here are kernel (driver vm in region r0000)"}},
		"no region":                       {withForms(0), 1, nil, nil},
	} {
		var got []string
		for _, p := range WrongConfigs(c.st, withTasks(c.tasks, c.allow...)) {
			got = append(got, p.Message)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if n := len(WrongConfigs(withForms(2, other), withTasks(2*maxConfigProblems))); n != maxConfigProblems {
		t.Errorf("%d problems", n)
	}
}

// BenchmarkWrongConfigs: 100 tasks and 1,000 regions with two kinds of nodes. Only the last region accepts
// the config. The lock is held meanwhile.
func BenchmarkWrongConfigs(b *testing.B) {
	kinds := make([][]string, 1000)
	for i := range kinds {
		kinds[i] = []string{"kernel"}
	}
	kinds[999] = []string{"image"}
	st, spec := withForms(1000, kinds...), withTasks(100)
	for b.Loop() {
		if len(WrongConfigs(st, spec)) > 0 {
			b.Fatal("it is refused")
		}
	}
}

// BenchmarkMissingDrivers: 100 groups ask for a driver that none of 1,000 regions has.
func BenchmarkMissingDrivers(b *testing.B) {
	st, spec := withForms(1000, nil), &Spec{}
	for _, r := range st.Regions {
		r.Report = &nusav1.RegionReport{Drivers: []string{"docker", "incus", "process", "vm"}}
	}
	for i := range 100 {
		spec.job.Groups = append(spec.job.Groups, place.Group{Name: fmt.Sprint("g", i), Ask: place.Ask{Drivers: []string{"none"}}})
	}
	for b.Loop() {
		if got := missingDrivers(st, spec); len(got) != 1 {
			b.Fatal(got)
		}
	}
}
