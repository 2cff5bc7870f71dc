package room

import "fmt"

const (
	// Percentages of a limit. From warnFrom on there is an alarm. From newUntil on, no new job is
	// accepted. From anyUntil on, no new version of a job is accepted either. Each of these stages ends
	// when the fill is calm points below its beginning.
	warnFrom, newUntil, anyUntil, calm = 70, 90, 95, 5
	// JobOverhead is the number of bytes that count for a job beside its records. A job takes more
	// memory than that: see docs/design/scale.md.
	JobOverhead = 512
	// firstJob is the least size in bytes that is assumed for a job while fewer than fewJobs are
	// stored.
	firstJob, fewJobs = 4096, 100
)

// Limits bound the bytes of job records: Jobs in all, Namespace in one namespace; 0: no limit.
type Limits struct{ Jobs, Namespace int64 }

// Usage is how full the store is.
type Usage struct {
	// Bytes is the size on disk. InUse is how many of these bytes are in use. Quota bounds InUse.
	// 0: not known.
	Bytes, InUse, Quota int64
	// NoSpace: the store refuses all writes that need space, also those of elections.
	NoSpace bool
}

// Room counts what the jobs take in the store and in memory, and what is left. The zero value has
// no limit.
type Room struct {
	Limits Limits
	// Keys is the number of stored records. Jobs is the number of stored jobs.
	Keys, Jobs int64
	// JobBytes is the weight of all jobs, in bytes.
	JobBytes int64
	// Unread is the greatest weight that jobs may have which are stored and not counted yet.
	Unread      int64
	byNamespace map[string]int64
	// usage is the latest measurement of the store. written is the number of bytes that
	// transactions have written since the measurement.
	usage   Usage
	written int64
	// stage is how many stages of a filling store have begun and not ended.
	stage int
}

// Usage returns how full the store is now.
func (r *Room) Usage() Usage { return Usage{r.usage.Bytes, r.used(), r.usage.Quota, r.usage.NoSpace} }

// used returns the bytes of the store that are in use.
func (r *Room) used() int64 { return r.usage.InUse + r.written }

// Wrote counts the bytes that a transaction has written.
func (r *Room) Wrote(bytes int64) { r.written += bytes }

// Measured takes a measurement of the store. If a stage begins or ends now, it returns Filling, otherwise "". worse: a
// stage begins.
func (r *Room) Measured(use Usage) (text string, worse bool) {
	r.usage, r.written = use, 0
	filled, was := percent(r.used(), use.Quota), r.stage
	r.stage = 0
	for k, from := range []int64{warnFrom, newUntil, anyUntil} {
		if filled >= from || was > k && filled >= from-calm {
			r.stage = k + 1
		}
	}
	if r.stage == was {
		return "", false
	}
	return r.Filling(), r.stage > was
}

// Weigh counts a job whose weight changes from was to weight. 0: the job is not stored.
func (r *Room) Weigh(namespace string, was, weight int64) {
	if r.byNamespace == nil {
		r.byNamespace = map[string]int64{}
	}
	r.JobBytes += weight - was
	r.byNamespace[namespace] += weight - was
	if r.byNamespace[namespace] == 0 {
		delete(r.byNamespace, namespace)
	}
	switch {
	case was == 0 && weight > 0:
		r.Jobs++
	case was > 0 && weight == 0:
		r.Jobs--
	}
}

// Count counts a key that a write created or removed.
func (r *Room) Count(had, has bool) {
	switch {
	case has && !had:
		r.Keys++
	case had && !has:
		r.Keys--
	}
}

// inUnits prints a number of bytes with a unit.
func inUnits(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func percent(part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return part * 100 / whole
}

// Filling returns the text of the alarm: how full the store is, what it refuses, and what to do. Below the first stage
// it says that the alarm is over.
func (r *Room) Filling() string {
	filled := percent(r.used(), r.usage.Quota)
	text := fmt.Sprintf("the store has %s of %s in use (%d %%)%s; ", inUnits(r.used()), inUnits(r.usage.Quota), filled, r.moreFit("jobs "))
	switch {
	case filled >= anyUntil:
		text += "it refuses new jobs and new versions of jobs"
	case filled >= newUntil:
		text += fmt.Sprintf("it refuses new jobs, and takes new versions of jobs up to %d %%", anyUntil)
	case r.stage == 0 && filled < warnFrom:
		return text + "it is no longer filling"
	default:
		text += fmt.Sprintf("it takes new jobs up to %d %%", newUntil)
	}
	return text + ": " + makeRoom + " --store-quota"
}

// moreFit says how many more jobs fit, approximately; "" if none fits.
func (r *Room) moreFit(what string) string {
	left := r.Left()
	if left == 0 {
		return ""
	}
	return fmt.Sprintf(", and about %d more %sfit", left, what)
}

// Alarms returns the alarms that an operator has to act on.
func (r *Room) Alarms() (out []string) {
	if percent(r.used(), r.usage.Quota) >= warnFrom || r.stage > 0 {
		out = append(out, r.Filling())
	}
	if filled := percent(r.JobBytes, r.Limits.Jobs); filled >= warnFrom {
		out = append(out, fmt.Sprintf("the jobs take %s of %s (%d %%)%s: %s --jobs-max",
			inUnits(r.JobBytes), inUnits(r.Limits.Jobs), filled, r.moreFit(""), makeRoom))
	}
	return out
}

// Left returns how many jobs still fit, approximately. A new job is assumed to take what the
// stored jobs take on average. While few jobs are stored, the average is that of the jobs' own
// sizes, and at least firstJob.
func (r *Room) Left() int64 {
	left := int64(-1)
	fit := func(free, each int64) {
		n := max(0, free) / max(1, each)
		if left < 0 || n < left {
			left = n
		}
	}
	few, typical := r.Jobs < fewJobs, max(firstJob, r.JobBytes/max(1, r.Jobs))
	if r.usage.Quota > 0 {
		each := typical
		if !few {
			each = r.used() / r.Jobs
		}
		fit(r.usage.Quota*newUntil/100-r.used(), each)
	}
	if r.Limits.Jobs > 0 {
		each := typical
		if !few {
			each = r.JobBytes / r.Jobs
		}
		fit(r.Limits.Jobs-r.JobBytes, each)
	}
	return max(0, left)
}

// Refusal says that there is no room for a submit.
type Refusal struct {
	// Used and Limit are bytes.
	Used, Limit int64
	// Later: whether there is room will be known soon.
	Later bool
	text  string
}

// Error says what is full, with the numbers, and what to do.
func (r *Refusal) Error() string { return r.text }

// makeRoom says what an operator can do to make room.
const makeRoom = "purge jobs that have ended, stop and purge large ones (nusa job stop --purge), or raise"

// Ask is the room that a submit needs.
type Ask struct {
	Namespace string
	// Grows is by how many bytes the job grows. Size is how many bytes the submit stores.
	Grows, Size int64
	// Version: the submit is a new version of a stored job.
	Version bool
	// Pending is by how many bytes earlier submits of the same transaction grow. PendingHere is the part of
	// the same namespace.
	Pending, PendingHere int64
}

// Check returns why there is no room for a submit, or nil if there is room. Stops and purges are
// not checked.
func (r *Room) Check(ask Ask) *Refusal {
	namespace, grows := ask.Namespace, ask.Grows
	until, takes := int64(newUntil), fmt.Sprintf("new jobs up to %d %% (new versions of jobs up to %d %%)", newUntil, anyUntil)
	if ask.Version {
		until, takes = anyUntil, fmt.Sprintf("new versions of jobs up to %d %%", anyUntil)
	}
	all, in := r.JobBytes+ask.Pending, r.byNamespace[namespace]+ask.PendingHere
	switch {
	case r.usage.Quota > 0 && r.used() >= r.usage.Quota/100*until:
		return refuse(r.used(), r.usage.Quota, "the store has %s of %s in use (%d %%), and it takes %s; this submit needs %s: %s --store-quota of the global servers; stops, purges and what runs go on",
			inUnits(r.used()), inUnits(r.usage.Quota), percent(r.used(), r.usage.Quota), takes, inUnits(ask.Size), makeRoom)
	case grows > 0 && r.Limits.Jobs > 0 && all+grows > r.Limits.Jobs:
		return refuse(all, r.Limits.Jobs, "the jobs of all namespaces take %s of %s, and this one needs %s more: %s --jobs-max of the global servers",
			inUnits(all), inUnits(r.Limits.Jobs), inUnits(grows), makeRoom)
	case grows > 0 && r.Limits.Namespace > 0 && in+grows > r.Limits.Namespace:
		return refuse(in, r.Limits.Namespace, "the jobs of namespace %s take %s of %s, and this one needs %s more: %s --namespace-max of the global servers",
			namespace, inUnits(in), inUnits(r.Limits.Namespace), inUnits(grows), makeRoom)
	case grows > 0 && r.Unread > 0 && (over(all+r.Unread+grows, r.Limits.Jobs) || over(in+r.Unread+grows, r.Limits.Namespace)):
		no := refuse(all, r.Limits.Jobs, "the history of ended jobs is still being read, so it is not known yet whether there is room for this job: try again")
		no.Later = true
		return no
	}
	return nil
}

// over reports whether a weight exceeds a limit; 0: no limit.
func over(weight, limit int64) bool { return limit > 0 && weight > limit }

func refuse(used, limit int64, format string, args ...any) *Refusal {
	return &Refusal{Used: used, Limit: limit, text: fmt.Sprintf(format, args...)}
}
