package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// specToPlace returns a job in the form that package place takes, with only the values that its
// spec contains.
func specToPlace(spec *nusav1.JobSpec) place.Job {
	out := place.Job{
		Namespace: spec.GetNamespace(), Name: spec.GetName(),
		Type:     place.JobType(EnumWord(spec.GetType().String(), "JOB_TYPE_")),
		Priority: int(spec.GetPriority()),
	}
	if job.IsTemplate(spec) {
		return out // its runs have the groups
	}
	for _, name := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		g := spec.GetGroups()[name]
		ask := askToPlace(g)
		out.Groups = append(out.Groups, place.Group{
			Name: name, Count: int(g.GetCount()), Ask: ask, AskHash: ask.Hash(), Regions: regionsToPlace(job.RegionsOf(spec, name)),
			MaxParallel: int(g.GetUpdate().GetMaxParallel()), Parallel: int(g.GetParallel()), Level: levelOf(g),
			Bound: boundByRegion(g), StopTime: stopTime(g),
			OnDisconnect: place.OnDisconnect{
				After:    g.GetDisconnect().GetRegion().GetAfter().AsDuration(),
				Replace:  g.GetDisconnect().GetRegion().GetReplace(),
				Failback: failbackToPlace(g.GetDisconnect().GetRegion().GetFailback()),
			},
		})
	}
	out.RegionOrder = orderToPlace(spec)
	for _, c := range spec.GetColocate() {
		out.Colocate = append(out.Colocate, c.GetGroups())
	}
	return out
}

// AddRefusals adds to a job which regions refuse the config of its tasks, in the present version and, if instances may
// get it, in Stable. The lock is held.
func AddRefusals(st *State, rec *Record, j *place.Job) {
	var stable *Record
	if of := st.Jobs[JobKey{j.Namespace, j.Name}]; of != nil && j.Stable != nil && j.Type == place.Service {
		stable = of.Healthy
	}
	if !rec.hasPlugins() && !stable.hasPlugins() {
		return
	}
	j.Groups = slices.Clone(j.Groups)
	for i := range j.Groups {
		g := &j.Groups[i]
		plugins, was := rec.rulesOf(g.Name).plugins, stable.rulesOf(g.Name).plugins
		g.Refused = st.Forms.Refusals(plugins)
		if stable.HasGroup(g.Name) && stable.Version() < g.UnchangedSince {
			g.RefusedStable = st.Forms.Refusals(was)
		}
	}
}

// orderToPlace returns how versions of a job go from region to region, or nil if the job does not say it.
func orderToPlace(spec *nusav1.JobSpec) *place.RegionOrder {
	of, _ := job.UpdateRegions(spec)
	if of == nil {
		return nil
	}
	return &place.RegionOrder{
		MaxParallel: max(1, int(of.GetMaxParallel())), First: of.GetOrder(),
		Continue: of.GetOnFailure() == nusav1.OnFailure_ON_FAILURE_CONTINUE, PauseBetween: of.GetPauseBetween().AsDuration(),
	}
}

// These are the feature levels of the regions that know the fields retry and parallel of groups.
const (
	retryLevel    = 7
	parallelLevel = 9
	// otherLevel: regions know rules that ask for another region.
	otherLevel = 14
)

// levelOf returns the feature level that a region needs for a group, besides that of its lease.
func levelOf(g *nusav1.Group) int {
	other := func(r *nusav1.RetryRule) bool { return r.GetOther() == nusav1.RetryOther_RETRY_OTHER_REGION }
	switch {
	case slices.ContainsFunc(g.GetRetry().GetRules(), other):
		return otherLevel
	case g.GetParallel() > 0:
		return parallelLevel
	case g.GetRetry() != nil:
		return retryLevel
	}
	return 0
}

// failbackToPlace returns the failback rule of a group. Jobs that an earlier version of Nusa stored
// have none.
func failbackToPlace(f *nusav1.Failback) place.Failback {
	out := place.Failback{Mode: place.FailbackReview, After: f.GetAfter().AsDuration()}
	if f.GetMode() != nusav1.FailbackMode_FAILBACK_MODE_UNSPECIFIED {
		out.Mode = place.FailbackMode(EnumWord(f.GetMode().String(), "FAILBACK_MODE_"))
	}
	return out
}

// boundByRegion reports whether the region's lease binds the instances of a group.
func boundByRegion(g *nusav1.Group) bool {
	switch g.GetDisconnect().GetRegion().GetRunning() {
	case nusav1.Running_RUNNING_STOP:
		return true
	case nusav1.Running_RUNNING_KEEP:
		return false
	}
	return g.GetSingleton()
}

// stopTime returns the longest kill_timeout of the tasks of a group.
func stopTime(g *nusav1.Group) time.Duration {
	longest := time.Duration(0)
	for _, t := range g.GetTasks() {
		longest = max(longest, t.GetKillTimeout().AsDuration())
	}
	return longest
}

func askToPlace(g *nusav1.Group) place.Ask {
	a := job.AskOf(g)
	return place.Ask{
		CPUMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes,
		GPU:  place.GPU{Count: int(a.GPUCount), Models: a.GPUModels, ShareMilli: int(a.GPUShareMilli)},
		Pool: a.Pool, Drivers: a.Drivers, Capabilities: a.Capabilities(), Constraints: a.Constraints,
		StaticPorts: ints(a.StaticPorts()), DynamicPorts: a.DynamicPorts(), Dedicated: a.Dedicated, Apart: a.Apart, Volumes: a.Volumes,
	}
}

func ints(in []int32) []int {
	out := make([]int, len(in))
	for i, v := range in {
		out[i] = int(v)
	}
	return out
}

func regionsToPlace(r *nusav1.RegionsSpec) place.RegionsSpec {
	out := place.RegionsSpec{
		SpreadMin: int(r.GetSpread().GetMin()), SpreadMax: int(r.GetSpread().GetMax()),
		Divide: place.Divide(EnumWord(r.GetDivide().String(), "DIVIDE_")),
	}
	if r.GetDivide() == nusav1.Divide_DIVIDE_UNSPECIFIED {
		out.Divide = "" // the default
	}
	for _, a := range r.GetAllow() {
		out.Allow = append(out.Allow, selectorToPlace(a))
	}
	for _, p := range r.GetPrefer() {
		out.Prefer = append(out.Prefer, place.Preference{Selector: selectorToPlace(p.GetSelector()), Weight: int(p.GetWeight())})
	}
	for _, n := range r.GetNear() {
		near := place.Near{
			Selector: selectorToPlace(n.GetSelector()), MaxRTT: n.GetMaxRtt().AsDuration(), Data: n.GetDataBytes(),
			Percentile: topology.Percentile(n.GetPercentile()), Required: n.GetRequired(),
			Unknown: place.UnknownRefuse, Weight: int(n.GetWeight()),
		}
		if n.GetUnknown() != nusav1.Unknown_UNKNOWN_UNSPECIFIED {
			near.Unknown = place.Unknown(EnumWord(n.GetUnknown().String(), "UNKNOWN_"))
		}
		if l := n.GetLocation(); l != nil {
			near.Location = topo.LocationFromProto(l)
		}
		near.Domain = n.GetDomain()
		out.Near = append(out.Near, near)
	}
	return out
}

// labelled returns the region with what selectors look at.
func (r *Region) labelled() *place.Region {
	return &place.Region{Name: r.Name, Labels: r.Record.GetDefinition().GetLabels()}
}

func selectorToPlace(s *nusav1.RegionSelector) place.Selector {
	return place.Selector{Name: s.GetName(), Labels: s.GetLabels()}
}

// disconnectedFor returns how long a region without a session has been silent, or 0 with a session.
func (r *Region) disconnectedFor(now time.Duration) time.Duration {
	if r.Session != nil {
		return 0
	}
	return r.Life.SilentFor(now)
}

// Unsteady reports whether the region was lost so often that it gets no work back without an
// operator. The lock is held.
func (r *Region) Unsteady() bool {
	var ago []time.Duration
	for _, at := range r.Record.GetLostAt() {
		ago = append(ago, time.Since(at.AsTime()))
	}
	return failover.Unsteady(ago)
}

// ToPlace returns the region in the form that package place takes. The lock is held.
func (r *Region) ToPlace(now time.Duration) place.Region {
	out := place.Region{
		At: now, Name: r.Name, Labels: r.Record.GetDefinition().GetLabels(), Cordoned: r.Record.GetCordoned(),
		Connected: r.Session != nil, NeverConnected: r.Record.GetClusterId() == "", DisconnectedFor: r.disconnectedFor(now),
		ReportSequence: r.Reports, Lost: r.Record.GetLost() != nil, Draining: r.Record.GetDraining(),
		CommitBlocked: r.Life.CommitBlocked, Behind: r.Life.Behind(), FeatureLevel: int(r.Record.GetFeatureLevel()),
		HealthyFor: r.Life.ConnectedFor(now), Unsteady: r.Unsteady(), Returning: r.Record.GetReturning(),
	}
	if r.Report == nil {
		return out
	}
	reported := r.reported()
	out.HasReport, out.ReportAge, out.SlotsRevision = true, now-r.ReportAt, reported.SlotsRevision
	out.Fits, out.NoFitReasons, out.Bins, out.Drivers = reported.Fits, reported.NoFitReasons, reported.Bins, reported.Drivers
	out.Free, out.Capacity = reported.Free, reported.Capacity
	out.CPUUtilisation, out.MemoryUtilisation = reported.CPUUtilisation, reported.MemoryUtilisation
	out.NodesReady, out.QueueLength = reported.NodesReady, reported.QueueLength
	out.Charged = r.account.Charges()
	return out
}

// placed is a region in the form that package place takes, with the values that it was made from.
type placed struct {
	of       *Region
	record   *nusav1.Region
	report   *nusav1.RegionReport
	session  bool
	reports  uint64
	charges  uint64
	level    uint32
	blocked  time.Duration
	behind   bool
	reportAt time.Duration
	// healthy is the time since which the region has been connected without a break, and silent the
	// time since which it has been silent; -1: it is not.
	healthy, silent time.Duration
	// unsteady: the region was lost before, so what it gets changes with time alone.
	unsteady bool

	region *place.Region
}

// placedNow returns the present values for a region, without the place.Region.
func (r *Region) placedNow(now time.Duration, level uint32) placed {
	p := placed{of: r, record: r.Record, report: r.Report, session: r.Session != nil, reports: r.Reports, charges: r.account.Changes(),
		level: level, blocked: r.Life.CommitBlocked, behind: r.Life.Behind(), reportAt: r.ReportAt, healthy: r.healthySince(now), silent: -1,
		unsteady: len(r.Record.GetLostAt()) > 0}
	if !p.session {
		p.silent = now - r.disconnectedFor(now)
	}
	return p
}

// same reports whether the values are certainly those of placedNow. It is cheaper than a comparison
// with placedNow: most messages touch a region, and change none of its values.
func (p *placed) same(now time.Duration, level uint32) bool {
	r := p.of
	return p.record == r.Record && p.report == r.Report && p.session && r.Session != nil && p.reports == r.Reports &&
		p.charges == r.account.Changes() && p.level == level && p.blocked == r.Life.CommitBlocked && p.behind == r.Life.Behind() && p.reportAt == r.ReportAt &&
		p.healthy == r.healthySince(now) && !p.unsteady
}

// healthySince returns since when the region has been healthy; -1: it is not.
func (r *Region) healthySince(now time.Duration) time.Duration {
	if d := r.Life.ConnectedFor(now); d > 0 {
		return now - d
	}
	return -1
}

// placedRegions are the regions that the placer got last, sorted by name. first points to the
// first name in the list of names from which they were made. That list is replaced when a
// region is added or removed.
type placedRegions struct {
	all   []placed
	list  []*place.Region
	first *string
	level uint32
	// touched are the regions that may have changed since then. refuses says which of all may have refusals.
	touched []*Region
	refuses []bool
}

// Touch notes that a region may have changed for package place. A change of Life, Session, Record, Reports or
// Refusals must be followed by a call. The lock is held.
func (r *Region) Touch() {
	if r.placed != nil && !r.touched {
		r.touched, r.placed.touched = true, append(r.placed.touched, r)
	}
}

// reset begins with the present names and level, and touches all regions.
func (kept *placedRegions) reset(st *State, names []string) {
	*kept = placedRegions{all: make([]placed, len(names)), list: make([]*place.Region, len(names)), refuses: make([]bool, len(names)), level: st.GlobalLevel}
	for i, name := range names {
		r := st.Regions[name]
		kept.all[i].of, kept.first = r, &names[0]
		r.placed, r.placedAt, r.touched = kept, i, false
		r.Touch()
	}
}

// PlacedRegions returns the regions in the form that package place takes, sorted by name, and what
// they refused. A region that has not changed since the last call has the same pointer. The caller
// must not change the list and the regions in it. Only regions that were touched are looked at: a look at a
// thousand regions takes as long as a plan. The lock is held.
func PlacedRegions(st *State, now time.Duration) (regions []*place.Region, returned []place.Returned) {
	names, kept := st.RegionNames(), &st.placed
	if len(names) != len(kept.all) || len(names) > 0 && &names[0] != kept.first || kept.level != st.GlobalLevel {
		kept.reset(st, names)
	}
	touched, copied := kept.touched, false
	kept.touched = nil
	for _, r := range touched {
		r.touched = false
		if r.placedAt >= len(kept.all) || kept.all[r.placedAt].of != r {
			continue // it was removed
		}
		p := &kept.all[r.placedAt]
		kept.refuses[r.placedAt] = len(r.Refusals) > 0
		if p.update(st, now) {
			if !copied {
				kept.list, copied = slices.Clone(kept.list), true
			}
			kept.list[r.placedAt] = p.region
		}
		if p.unsteady {
			r.Touch() // it changes with time
		}
	}
	for i, refuses := range kept.refuses {
		if !refuses {
			continue
		}
		for _, refusal := range kept.all[i].of.Refusals {
			returned = append(returned, refusal.ToPlace(now))
		}
	}
	return kept.list, returned
}

// update makes the place.Region again if one of the values has changed, and reports whether it did.
func (p *placed) update(st *State, now time.Duration) bool {
	if p.region != nil && p.same(now, st.GlobalLevel) {
		return false
	}
	is := p.of.placedNow(now, st.GlobalLevel)
	is.region = p.region
	if is == *p && p.region != nil && !is.unsteady {
		return false
	}
	at := p.of.ToPlace(now)
	if st.GlobalLevel == 0 {
		at.FeatureLevel = 0 // some global server grants no leases to regions
	}
	is.region = &at
	*p = is
	return true
}

// reported returns the latest report in the form that package place takes. It is made once for each
// report. The caller must not change its maps. The lock is held.
func (r *Region) reported() *place.Region {
	if r.fromReport == nil {
		r.fromReport = reportToPlace(r.Name, r.Report, nil, &place.Region{})
	}
	return r.fromReport
}

// reportToPlace returns a report in the form that package place takes. earlier is the report before it, and was is
// what reportToPlace returned for that one. The result shares the parts of was that have not changed: the reports of a
// region at rest are equal.
func reportToPlace(name string, rep, earlier *nusav1.RegionReport, was *place.Region) *place.Region {
	out := &place.Region{Name: name, SlotsRevision: rep.GetSlotsRevision(), Fits: was.Fits, NoFitReasons: was.NoFitReasons, Bins: was.Bins}
	if fits := rep.GetShape().GetFits(); was.Fits == nil || !slices.EqualFunc(fits, earlier.GetShape().GetFits(), sameFit) {
		out.Fits, out.NoFitReasons = fitsToPlace(name, fits)
	}
	if bins := rep.GetShape().GetBins(); !slices.EqualFunc(was.Bins, bins, func(w place.Bin, b *nusav1.ShapeBin) bool { return w == binToPlace(b) }) {
		out.Bins = nil
		for _, b := range bins {
			out.Bins = append(out.Bins, binToPlace(b))
		}
	}
	out.Free, out.Capacity = resourcesToPlace(rep.GetFree()), resourcesToPlace(rep.GetCapacity())
	out.CPUUtilisation, out.MemoryUtilisation = rep.GetUtilisation().GetCpu(), rep.GetUtilisation().GetMemory()
	if !rep.GetDriversTruncated() {
		out.Drivers = rep.GetDrivers()
	}
	out.NodesReady, out.QueueLength = int(rep.GetNodesReady()), int(rep.GetQueueLength())
	return out
}

func sameFit(a, b *nusav1.FitCount) bool {
	return a.GetAsk() == b.GetAsk() && a.GetCount() == b.GetCount() && a.GetReason() == b.GetReason() && a.GetMessage() == b.GetMessage()
}

// fitsToPlace returns how often each ask fits, and why some fit nowhere.
func fitsToPlace(name string, fits []*nusav1.FitCount) (counts map[uint64]int, reasons map[uint64]place.Returned) {
	counts = make(map[uint64]int, len(fits))
	for _, f := range fits {
		counts[f.GetAsk()] = int(f.GetCount())
		if f.GetCount() != 0 || f.GetReason() == nusav1.Reason_REASON_UNSPECIFIED {
			continue
		}
		if reasons == nil {
			reasons = map[uint64]place.Returned{}
		}
		reasons[f.GetAsk()] = place.Returned{
			Region: name, Reason: ReasonFromProto(f.GetReason()), Message: f.GetMessage(), ReasonText: reason.WithMessage(f.GetReason(), f.GetMessage()),
		}
	}
	return counts, reasons
}

func binToPlace(b *nusav1.ShapeBin) place.Bin {
	return place.Bin{Nodes: max(0, int(b.GetNodes())), Free: resourcesToPlace(b.GetFree()), Pool: b.GetPool()}
}

func resourcesToPlace(r *nusav1.Resources) place.Resources {
	return place.Resources{
		CPUMilli: r.GetCpuMilli(), MemoryBytes: r.GetMemoryBytes(), DiskBytes: r.GetDiskBytes(),
		GPUMilli: int64(r.GetGpu().GetCount())*1000 + int64(r.GetGpu().GetShareMilli()),
	}
}

// ToPlace returns the job with its slots, in the form that package place takes. The lock is held.
func (j *Job) ToPlace(see Sight) place.Job {
	out := j.WithSlots(see)
	if see.st != nil {
		AddRefusals(see.st, j.Record, &out)
	}
	return out
}

// WithSlots is ToPlace without the regions that refuse the config of plugins, for a caller that adds them itself once
// the groups are complete: see AddRefusals. The lock is held.
func (j *Job) WithSlots(see Sight) place.Job {
	out := j.Alone()
	out.Slots = j.SortedSlots()
	out.Breaches = j.Notes().Breaches
	out.Summaries = j.Reported(j.Record)
	rec := j.PresentRollout()
	out.RegionOrder = j.order(rec)
	if rec.GetFailed() != "" || rec.GetPaused() {
		out.RolloutHold, out.Paused = holdText(rec), rec.GetFailed() == ""
	}
	if out.RolloutHold != "" {
		out.KeepStable(j.stable())
	}
	if Sustained(j.Notes().Breaches) {
		out.Down = j.NotRunning(see)
	}
	return out
}

// NotRunning returns, by group, how many instances have a region and must run, but do not run.
// Instances that are being revoked do not count, nor do those that an override stops, and those of a batch job that have
// ended. Instances of an array that wait for their turn need not run.
func (j *Job) NotRunning(see Sight) map[string]int {
	out := map[string]int{}
	for name, g := range j.Status(see).GetGroups() {
		c := g.GetCounts()
		must := g.GetDesired() - g.GetUnowned() - c.GetHeld()
		if j.Record.Type() == place.Batch {
			must -= c.GetComplete() + c.GetFailed()
		}
		if of := j.Place().Group(name); of != nil && of.Parallel > 0 {
			must = min(must, int32(of.Parallel))
		}
		out[name] = max(0, int(must-c.GetRunning()))
	}
	return out
}

// waitingForTurn returns how many instances of an array wait in a region because as many run as `parallel` allows.
func waitingForTurn(sum *nusav1.JobSummary, group string) (n int32) {
	for _, c := range sum.GetReasons()[group].GetReasons() {
		if c.GetReason() == nusav1.Reason_REASON_PARALLEL {
			n += c.GetCount()
		}
	}
	return min(n, sum.GetGroups()[group].GetPending())
}

// Sustained reports whether one of the breaches has lasted long enough to move instances.
func Sustained(all []place.Breach) bool {
	return slices.ContainsFunc(all, func(b place.Breach) bool { return b.State == topology.Sustained })
}

// HasNear reports whether a job's placement depends on round-trip times.
func HasNear(j *place.Job) bool {
	return slices.ContainsFunc(j.Groups, func(g place.Group) bool { return len(g.Regions.Near) > 0 })
}
