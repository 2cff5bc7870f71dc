package alloc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// instanceHelp is the help text about arguments that name one instance.
const instanceHelp = instanceNames + `
JOB if the job has one instance, JOB/GROUP, JOB/GROUP/INDEX.`

// instanceNames is the beginning of instanceHelp. It also begins the help text of commands
// that accept several instances.
const instanceNames = `An instance is named by its allocation's id, or the beginning of the id, or by its job:`

var (
	// idLike matches a text that may be the beginning of an allocation's id.
	idLike = lazyregexp.New(`^[0-9a-f][0-9a-f-]{3,63}$`)
	// indexed matches an instance as tables show it, for example web[3].
	indexed = lazyregexp.New(`^(.*)\[([0-9]+)\]$`)
)

// target is what an argument names: all instances of a job, the instances of one of its
// groups, or one instance.
type target struct {
	job   *nusav1.JobRef
	group string
	index int32 // a negative index means every instance
}

func (n target) String() string {
	parts := []string{cli.RefArg(&nusav1.JobRef{Namespace: "default", Name: n.job.GetName(), Region: n.job.GetRegion()})}
	if n.group != "" {
		parts = append(parts, n.group)
	}
	if n.index >= 0 {
		parts = append(parts, term.Count(n.index))
	}
	return strings.Join(parts, "/")
}

// readings returns the possible meanings of an argument, the likeliest first:
// JOB/GROUP/INDEX without a namespace, then with a namespace.
func readings(c *cli.Session, arg string) ([]target, error) {
	path := arg
	if m := indexed().FindStringSubmatch(arg); m != nil {
		path = m[1] + "/" + m[2]
	}
	parts := strings.Split(path, "/")
	var out []target
	for skip := range min(len(parts), 2) {
		at := parts[skip:]
		name := strings.Join(parts[:skip+1], "/")
		ref, err := c.Ref(name)
		if err != nil || len(at) > 3 {
			continue
		}
		n := target{job: ref, index: -1}
		if len(at) > 1 {
			n.group = at[1]
		}
		if len(at) > 2 {
			index, err := strconv.ParseInt(at[2], 10, 32)
			if err != nil || index < 0 {
				return nil, fmt.Errorf("%q: %q is not an instance's number: write JOB/GROUP/INDEX", arg, at[2])
			}
			n.index = int32(index)
		}
		out = append(out, n)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%q is neither an allocation's id, 4 characters or more of it, nor JOB, JOB/GROUP or JOB/GROUP/INDEX: `%s alloc list` shows them", arg, c.Program)
	}
	return out, nil
}

// findAllocs returns the allocations that an argument names: the latest one of each
// instance, sorted by instance. It returns ended allocations in three cases: no allocation
// is alive, the argument names one instance, or ended is true. In the last case it also
// returns the allocations of instances that ended by themselves.
func findAllocs(ctx context.Context, c *cli.Session, arg string, ended bool) ([]*nusav1.Allocation, target, error) {
	var noID error
	if idLike().MatchString(arg) {
		a, err := c.Allocs().Get(ctx, &nusav1.GetAllocationRequest{Id: arg})
		if err == nil {
			return []*nusav1.Allocation{a}, target{}, nil
		}
		noID = err
		if status.Code(err) != codes.NotFound {
			return nil, target{}, err
		}
	}
	readings, err := readings(c, arg)
	if err != nil {
		return nil, target{}, cmp.Or(noID, err)
	}
	for _, n := range readings {
		var found []*nusav1.Allocation
		var silent []string
		found, silent, err = allocsOfJob(ctx, c, n.job, ended)
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, n, err
		}
		found, err = chooseAllocs(c, found, n)
		if err != nil && n.group != "" {
			if all, fail := listAllocs(ctx, c, n.job, true); fail == nil {
				if old, fail := chooseAllocs(c, all.GetAllocations(), n); fail == nil {
					return old, n, nil
				}
			}
		}
		if err != nil && len(silent) > 0 {
			if missing := noGroup(ctx, c, n); missing != nil {
				return nil, n, missing
			}
			if noID != nil {
				return nil, n, noAnswerAbout("allocation "+arg, silent)
			}
			err = noAnswerError(c, n, silent)
		}
		return found, n, err
	}
	if noID != nil {
		return nil, readings[0], noID
	}
	c.WantedJob = readings[0].job
	missing := cli.RefName(readings[0].job)
	return nil, readings[0], rpcerr.NotFound(rpcerr.KindJob, missing, "job "+missing+" does not exist")
}

// noGroup returns an error if the job has no group of the name that n gives. It returns nil if the
// job cannot be read.
func noGroup(ctx context.Context, c *cli.Session, n target) error {
	if n.group == "" {
		return nil
	}
	j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: n.job})
	if err != nil || j.GetSpec().GetGroups()[n.group] != nil {
		return nil
	}
	return fmt.Errorf("job %s has no group %q, but %s", cli.RefName(n.job), n.group, strings.Join(slices.Sorted(maps.Keys(j.GetSpec().GetGroups())), ", "))
}

// noAnswerError returns the error for instances that were not found and may be in a
// region that did not respond.
func noAnswerError(c *cli.Session, n target, silent []string) error {
	what := "the instances of " + cli.RefName(n.job)
	if n.group != "" {
		what = n.String()
	}
	return fmt.Errorf("%w; `%s job status %s` shows where they were placed", noAnswerAbout(what, silent), c.Program, cli.RefArg(n.job))
}

// noAnswerAbout returns the error that something may be in regions that did not respond.
func noAnswerAbout(what string, silent []string) error {
	them, are := "it is", "region "
	if len(silent) > 1 {
		them, are = "they are", "regions "
	}
	return fmt.Errorf("%s may be in %s, which did not answer: try again when %s back", what, are+strings.Join(silent, ", "), them)
}

// allocsOfJob returns a job's allocations, and the regions that did not respond, which may
// have more allocations. Ended allocations are included if ended is true or no allocation
// is alive.
func allocsOfJob(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, ended bool) (found []*nusav1.Allocation, silent []string, err error) {
	var all *nusav1.ListAllocationsResponse
	var group errgroup.Group
	if ended {
		group.Go(func() (err error) { all, err = listAllocs(ctx, c, ref, true); return err })
	}
	resp, err := listAllocs(ctx, c, ref, false)
	if failed := group.Wait(); err == nil {
		err = failed
	}
	live := resp.GetAllocations()
	if err == nil && all == nil && len(live) == 0 {
		all, err = listAllocs(ctx, c, ref, true)
	}
	if err != nil {
		return nil, nil, err
	}
	if all != nil {
		resp = all
	}
	c.WarnPartial(resp.GetErrors())
	for _, e := range resp.GetErrors() {
		silent = append(silent, e.GetRegion())
	}
	return withEnded(live, all.GetAllocations()), silent, nil
}

func listAllocs(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, all bool) (*nusav1.ListAllocationsResponse, error) {
	return c.Allocs().List(ctx, &nusav1.ListAllocationsRequest{Job: ref, All: all, Limit: maxListed})
}

// withEnded returns the live allocations and the ended ones that matter. An ended
// allocation is left out if its instance has a later version or a younger live allocation.
// A stopped allocation is left out while any allocation is alive, because its instance no
// longer exists.
func withEnded(live, all []*nusav1.Allocation) []*nusav1.Allocation {
	type instance struct {
		group string
		index int32
	}
	of := func(a *nusav1.Allocation) instance { return instance{a.GetGroup(), a.GetIndex()} }
	version, born, lives := map[instance]int64{}, map[instance]time.Time{}, map[string]bool{}
	for _, a := range slices.Concat(live, all) {
		version[of(a)] = max(version[of(a)], a.GetJobVersion())
	}
	for _, a := range live {
		lives[a.GetId()] = true
		if at := a.GetCreated().AsTime(); at.After(born[of(a)]) {
			born[of(a)] = at
		}
	}
	out := slices.Clone(live)
	for _, a := range all {
		over := a.GetJobVersion() < version[of(a)] || a.GetCreated().AsTime().Before(born[of(a)]) ||
			len(live) > 0 && a.GetState() == nusav1.AllocState_ALLOC_STATE_STOPPED
		if !lives[a.GetId()] && !over {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(x, y *nusav1.Allocation) int {
		return cmp.Or(cmp.Compare(x.GetGroup(), y.GetGroup()), cmp.Compare(x.GetIndex(), y.GetIndex()))
	})
	return out
}

// maxListed bounds the allocations that a server returns in one list.
const maxListed = 10_000

// chooseAllocs returns the latest allocation of each instance that n names.
func chooseAllocs(c *cli.Session, all []*nusav1.Allocation, n target) ([]*nusav1.Allocation, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no instance, not even one that has ended: see `%s job status %s`", cli.RefName(n.job), c.Program, cli.RefArg(n.job))
	}
	type slot struct {
		group, region string
		index         int32
	}
	at := map[slot]int{}
	var latest []*nusav1.Allocation
	groups := map[string]bool{}
	for _, a := range all {
		groups[a.GetGroup()] = true
		k := slot{a.GetGroup(), a.GetRegion(), a.GetIndex()}
		if i, known := at[k]; !known {
			at[k] = len(latest)
			latest = append(latest, a)
		} else if !a.GetCreated().AsTime().Before(latest[i].GetCreated().AsTime()) {
			latest[i] = a
		}
	}
	ofGroup := slices.DeleteFunc(slices.Clone(latest), func(a *nusav1.Allocation) bool { return n.group != "" && a.GetGroup() != n.group })
	out := slices.DeleteFunc(slices.Clone(ofGroup), func(a *nusav1.Allocation) bool { return n.index >= 0 && a.GetIndex() != n.index })
	switch {
	case len(out) > 0:
		return out, nil
	case len(ofGroup) == 0:
		return nil, fmt.Errorf("%s has no instance of a group %q, but of %s", cli.RefName(n.job), n.group, strings.Join(slices.Sorted(maps.Keys(groups)), ", "))
	}
	return nil, fmt.Errorf("%s has no instance %s/%d, but %s", cli.RefName(n.job), n.group, n.index, nameAllocs(c, ofGroup))
}

// nameAllocs returns a text that names each of several allocations, for example "api/web/0
// or api/web/1". Instances of a system job have equal numbers in several regions, so these
// are named by id.
func nameAllocs(c *cli.Session, all []*nusav1.Allocation) string {
	times := map[string]int{}
	for _, a := range all {
		times[instance(a)]++
	}
	var names []string
	for _, a := range all {
		name := target{&nusav1.JobRef{Name: a.GetJob()}, a.GetGroup(), a.GetIndex()}.String()
		if times[instance(a)] > 1 {
			name = fmt.Sprintf("%s (%s on %s)", term.ShortID(a.GetId()), instance(a), nodeOf(a))
		}
		names = append(names, name)
		if len(names) == cli.MaxNamed && len(all) > cli.MaxNamed {
			return strings.Join(names, ", ") + fmt.Sprintf(" or another of %d: `%s alloc list --job %s` shows them", len(all), c.Program, a.GetJob())
		}
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " or " + names[last]
	}
	return strings.Join(names, "")
}

// findAlloc returns the one allocation that an argument names. If the argument names
// several, the error says how to name one of them.
func findAlloc(ctx context.Context, c *cli.Session, arg string) (*nusav1.Allocation, error) {
	all, n, err := findAllocs(ctx, c, arg, false)
	if err != nil {
		return nil, err
	}
	if len(all) > 1 {
		return nil, fmt.Errorf("%s has %s: say which, %s", n, term.Plural(len(all), "instance"), nameAllocs(c, all))
	}
	return all[0], nil
}
