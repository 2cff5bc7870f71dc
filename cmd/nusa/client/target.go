package client

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// instanceHelp is how the alloc commands name what they are about.
const instanceHelp = instanceNames + `
JOB when that has one instance, JOB/GROUP, JOB/GROUP/INDEX.`

// instanceNames begins it, also where several instances may be named.
const instanceNames = `Names an instance by its allocation's id, or the beginning of it, or by its job:`

// maxNamed is how many instances an error names.
const maxNamed = 8

var (
	// idLike is what could be the beginning of an allocation's id.
	idLike = regexp.MustCompile(`^[0-9a-f][0-9a-f-]{3,63}$`)
	// indexed is an instance as tables show it: web[3].
	indexed = regexp.MustCompile(`^(.*)\[([0-9]+)\]$`)
)

// instances are those of a job, of a group of it, or one.
type instances struct {
	job   *nusav1.JobRef
	group string
	index int32 // negative = any
}

func (n instances) String() string {
	parts := []string{refArg(&nusav1.JobRef{Namespace: "default", Name: n.job.GetName(), Region: n.job.GetRegion()})}
	if n.group != "" {
		parts = append(parts, n.group)
	}
	if n.index >= 0 {
		parts = append(parts, count(n.index))
	}
	return strings.Join(parts, "/")
}

// readings are what an argument can mean, the likeliest first: JOB/GROUP/INDEX
// without, and with, a namespace before it.
func (c *caller) readings(arg string) ([]instances, error) {
	path := arg
	if m := indexed.FindStringSubmatch(arg); m != nil {
		path = m[1] + "/" + m[2]
	}
	parts := strings.Split(path, "/")
	var out []instances
	for skip := range min(len(parts), 2) {
		at := parts[skip:]
		name := strings.Join(parts[:skip+1], "/")
		ref, err := c.ref(name)
		if err != nil || len(at) > 3 {
			continue
		}
		n := instances{job: ref, index: -1}
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
		return nil, fmt.Errorf("%q is neither an allocation's id, 4 characters or more of it, nor JOB, JOB/GROUP or JOB/GROUP/INDEX: `%s alloc list` shows them", arg, c.nusa)
	}
	return out, nil
}

// find are the allocations that an argument names, sorted by instance, the latest
// of each: those that live, else those that have ended.
func (c *caller) find(ctx context.Context, arg string) ([]*nusav1.Allocation, instances, error) {
	var noID error
	if idLike.MatchString(arg) {
		a, err := c.allocs().Get(ctx, &nusav1.GetAllocationRequest{Id: arg})
		if err == nil {
			return []*nusav1.Allocation{a}, instances{}, nil
		}
		if noID = err; status.Code(err) != codes.NotFound {
			return nil, instances{}, err
		}
	}
	readings, err := c.readings(arg)
	if err != nil {
		return nil, instances{}, cmp.Or(noID, err)
	}
	for _, n := range readings {
		var found []*nusav1.Allocation
		var silent []string
		if found, silent, err = c.ofJob(ctx, n.job); status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, n, err
		}
		if found, err = c.among(found, n); err != nil && len(silent) > 0 {
			err = c.unheard(n, silent)
		}
		return found, n, err
	}
	if noID != nil {
		return nil, readings[0], noID
	}
	c.sought = readings[0].job
	return nil, readings[0], status.Errorf(codes.NotFound, "job %s does not exist", refName(readings[0].job))
}

// unheard says that an instance was not found where regions did not answer that
// may have it.
func (c *caller) unheard(n instances, silent []string) error {
	what := "the instances of " + refName(n.job)
	if n.group != "" {
		what = n.String()
	}
	them, are := "it is", "region "
	if len(silent) > 1 {
		them, are = "they are", "regions "
	}
	return fmt.Errorf("%s may be in %s, which did not answer: try again when %s back; `%s job status %s` shows where they were placed",
		what, are+strings.Join(silent, ", "), them, c.nusa, refArg(n.job))
}

// ofJob are a job's allocations, also those that have ended when none lives, and
// the regions that may have more of them and did not answer.
func (c *caller) ofJob(ctx context.Context, ref *nusav1.JobRef) (found []*nusav1.Allocation, silent []string, err error) {
	for _, all := range []bool{false, true} {
		resp, err := c.allocs().List(ctx, &nusav1.ListAllocationsRequest{Job: ref, All: all, Limit: maxListed})
		if err != nil {
			return nil, nil, err
		}
		if len(resp.GetAllocations()) > 0 || all {
			c.partial(resp.GetErrors())
			for _, e := range resp.GetErrors() {
				silent = append(silent, e.GetRegion())
			}
			return resp.GetAllocations(), silent, nil
		}
	}
	return nil, nil, nil
}

// maxListed is the most allocations that a server lists.
const maxListed = 10_000

// among are the latest allocations of the instances that are named.
func (c *caller) among(all []*nusav1.Allocation, n instances) ([]*nusav1.Allocation, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no instance, and none that has ended is kept: see `%s job status %s`", refName(n.job), c.nusa, refArg(n.job))
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
		return nil, fmt.Errorf("%s has no instance of a group %q, but of %s", refName(n.job), n.group, strings.Join(slices.Sorted(maps.Keys(groups)), ", "))
	}
	return nil, fmt.Errorf("%s has no instance %s/%d, but %s", refName(n.job), n.group, n.index, c.named(ofGroup))
}

// named says how several allocations can be named, each by itself: "api/web/0 or
// api/web/1". Those of a system job have equal numbers in several regions.
func (c *caller) named(all []*nusav1.Allocation) string {
	times := map[string]int{}
	for _, a := range all {
		times[instance(a)]++
	}
	var names []string
	for _, a := range all {
		name := instances{&nusav1.JobRef{Name: a.GetJob()}, a.GetGroup(), a.GetIndex()}.String()
		if times[instance(a)] > 1 {
			name = fmt.Sprintf("%s (%s on %s)", shortID(a.GetId()), instance(a), nodeOf(a))
		}
		if names = append(names, name); len(names) == maxNamed && len(all) > maxNamed {
			return strings.Join(names, ", ") + fmt.Sprintf(" or another of %d: `%s alloc list --job %s` shows them", len(all), c.nusa, a.GetJob())
		}
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " or " + names[last]
	}
	return strings.Join(names, "")
}

// one is the allocation that an argument names; several are an error that says
// how to name one.
func (c *caller) one(ctx context.Context, arg string) (*nusav1.Allocation, error) {
	all, n, err := c.find(ctx, arg)
	if err != nil {
		return nil, err
	}
	if len(all) > 1 {
		return nil, fmt.Errorf("%s has %s: say which, %s", n, plural(len(all), "instance"), c.named(all))
	}
	return all[0], nil
}
