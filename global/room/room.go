package room

import "fmt"

const (
	// Percent of a limit: from warnFrom an alarm says so, and until quietBelow. From
	// newUntil no new job is taken, from anyUntil no new version of one either.
	warnFrom, quietBelow, newUntil, anyUntil = 70, 65, 90, 95
	// JobOverhead is counted for a job beside its records. Its memory is more: see
	// docs/design/scale.md.
	JobOverhead = 512
	// firstJob is the least assumed size of a job as long as few are stored.
	firstJob, fewJobs = 4096, 100
)

// Limits are the most bytes of job specs that submits may fill, in all and in one namespace;
// 0 = no limit.
type Limits struct{ Jobs, Namespace int64 }

// Usage is how full the store is.
type Usage struct {
	// Bytes is the size on disk, InUse what of it is in use, Quota the most in use; 0 = not
	// known.
	Bytes, InUse, Quota int64
	// NoSpace: the store refuses all writes that need room, elections too.
	NoSpace bool
}

// Room is what is left for jobs, in the store and in memory. The zero value knows no limit.
type Room struct {
	Limits Limits
	// Keys counts the stored records, Jobs those of jobs.
	Keys, Jobs int64
	// JobBytes is the weight of all jobs.
	JobBytes    int64
	byNamespace map[string]int64
	// usage is the latest measurement of the store; written is what transactions have
	// written since.
	usage   Usage
	written int64
	// warned: the event about the filling store was sent.
	warned bool
}

// Usage returns how full the store is now.
func (r *Room) Usage() Usage { return Usage{r.usage.Bytes, r.used(), r.usage.Quota, r.usage.NoSpace} }

// used returns the bytes of the store that are in use.
func (r *Room) used() int64 { return r.usage.InUse + r.written }

// Wrote counts what a transaction has written.
func (r *Room) Wrote(bytes int64) { r.written += bytes }

// Measured notes how full the store is. first: from now on there is an alarm about it.
func (r *Room) Measured(use Usage) (first bool) {
	r.usage, r.written = use, 0
	filled := percent(r.used(), use.Quota)
	first = filled >= warnFrom && !r.warned
	r.warned = filled >= warnFrom || r.warned && filled >= quietBelow
	return first
}

// Weigh counts a job that had one weight and has another; 0 = it is not stored.
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

// Count counts a key that a write made or removed.
func (r *Room) Count(had, has bool) {
	switch {
	case has && !had:
		r.Keys++
	case had && !has:
		r.Keys--
	}
}

// inUnits returns bytes as text.
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

// Filling says how full the store is and what to do.
func (r *Room) Filling() string {
	return fmt.Sprintf("the store has %s of %s in use (%d %%)%s; it takes new jobs up to %d %%: %s --store-quota",
		inUnits(r.used()), inUnits(r.usage.Quota), percent(r.used(), r.usage.Quota), r.moreFit("jobs "), newUntil, makeRoom)
}

// moreFit says about how many more jobs fit; "" when none does.
func (r *Room) moreFit(what string) string {
	left := r.Left()
	if left == 0 {
		return ""
	}
	return fmt.Sprintf(", and about %d more %sfit", left, what)
}

// Alarms returns what an operator has to act on.
func (r *Room) Alarms() (out []string) {
	if percent(r.used(), r.usage.Quota) >= warnFrom || r.warned {
		out = append(out, r.Filling())
	}
	if filled := percent(r.JobBytes, r.Limits.Jobs); filled >= warnFrom {
		out = append(out, fmt.Sprintf("the jobs take %s of %s (%d %%)%s: %s --jobs-max",
			inUnits(r.JobBytes), inUnits(r.Limits.Jobs), filled, r.moreFit(""), makeRoom))
	}
	return out
}

// Left returns about how many jobs still fit. As long as few are stored, a job is taken to be
// as large as those, but not smaller than firstJob.
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
	text        string
}

// Error says what is full, with the numbers and what to do.
func (r *Refusal) Error() string { return r.text }

// makeRoom is what to do for more room.
const makeRoom = "purge jobs that have ended, stop and purge large ones (nusa job stop --purge), or raise"

// Ask is what a submit needs.
type Ask struct {
	Namespace string
	// Grows is by how many bytes the job grows, Size what the submit stores.
	Grows, Size int64
	// Version: it is a new version of a job that is stored.
	Version bool
}

// Check returns why there is no room for a submit, nil if there is. Stops and purges are not
// submits.
func (r *Room) Check(ask Ask) *Refusal {
	namespace, grows := ask.Namespace, ask.Grows
	until, takes := int64(newUntil), fmt.Sprintf("new jobs up to %d %% (new versions of jobs up to %d %%)", newUntil, anyUntil)
	if ask.Version {
		until, takes = anyUntil, fmt.Sprintf("new versions of jobs up to %d %%", anyUntil)
	}
	in := r.byNamespace[namespace]
	switch {
	case r.usage.Quota > 0 && r.used() >= r.usage.Quota/100*until:
		return refuse(r.used(), r.usage.Quota, "the store has %s of %s in use (%d %%), and it takes %s; this submit needs %s: %s --store-quota of the global servers; stops, purges and what runs go on",
			inUnits(r.used()), inUnits(r.usage.Quota), percent(r.used(), r.usage.Quota), takes, inUnits(ask.Size), makeRoom)
	case grows > 0 && r.Limits.Jobs > 0 && r.JobBytes+grows > r.Limits.Jobs:
		return refuse(r.JobBytes, r.Limits.Jobs, "the jobs of all namespaces take %s of %s, and this one needs %s more: %s --jobs-max of the global servers",
			inUnits(r.JobBytes), inUnits(r.Limits.Jobs), inUnits(grows), makeRoom)
	case grows > 0 && r.Limits.Namespace > 0 && in+grows > r.Limits.Namespace:
		return refuse(in, r.Limits.Namespace, "the jobs of namespace %s take %s of %s, and this one needs %s more: %s --namespace-max of the global servers",
			namespace, inUnits(in), inUnits(r.Limits.Namespace), inUnits(grows), makeRoom)
	}
	return nil
}

func refuse(used, limit int64, format string, args ...any) *Refusal {
	return &Refusal{Used: used, Limit: limit, text: fmt.Sprintf(format, args...)}
}
