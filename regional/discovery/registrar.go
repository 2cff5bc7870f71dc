package discovery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/register"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// coalesce is the least time between two updates after burst of them.
	coalesce = 100 * time.Millisecond
	burst    = 5
	// renewEach is how often the instances of all groups with services are derived again, because the
	// address of a node may have changed.
	renewEach = 30 * time.Second
	// maxSpecs bounds the cached services of groups.
	maxSpecs = 10_000
	// warnEach is the least time between two warnings that the bounds are reached.
	warnEach = time.Minute
)

// Config holds what a Registrar needs from its server and its term.
type Config struct {
	Region string
	// Epoch identifies the positions of the term.
	Epoch string
	Store *discovery.Store
	View  func() *state.View
	// Full is called when services do not fit, at most once in warnEach. It may be nil.
	Full func(error)
	Log  *slog.Logger
}

// Registrar keeps the instances of a region in a store equal to the committed state, during one term of
// a master.
type Registrar struct {
	cfg Config

	mu    sync.Mutex
	dirty map[state.GroupKey]struct{}
	wake  chan struct{}

	// Only Run uses the following fields. keys are the keys of the registered instances by group.
	keys   map[state.GroupKey][]string
	specs  map[spec][]register.Service
	warned time.Time
}

// spec names the services of a group in one version of its job. A job that is removed and submitted again may have
// other services in a version of the same number.
type spec struct {
	job   *state.Job
	group string
}

// NewRegistrar returns the Registrar of a term.
func NewRegistrar(cfg Config) *Registrar {
	return &Registrar{
		cfg: cfg, dirty: map[state.GroupKey]struct{}{}, wake: make(chan struct{}, 1),
		keys: map[state.GroupKey][]string{}, specs: map[spec][]register.Service{},
	}
}

// GroupsChanged records groups whose slots or allocations changed. It does not block.
func (r *Registrar) GroupsChanged(groups []state.GroupKey) {
	if len(groups) == 0 {
		return
	}
	r.mu.Lock()
	for _, g := range groups {
		r.dirty[g] = struct{}{}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run updates the store until ctx ends.
func (r *Registrar) Run(ctx context.Context) error {
	// All instances come at once. Other regions and the agents have those of the term before until then, and they
	// would see a service disappear if a part came first.
	view := r.cfg.View()
	var all []*catalog.Instance
	for g := range view.Groups() {
		put, _ := r.derive(view, g.Key, true)
		all = append(all, put...)
	}
	r.warn(r.cfg.Store.Begin(r.cfg.Region, r.cfg.Epoch, all))
	pace := wait.NewPace(coalesce, burst)
	renew := time.NewTicker(renewEach)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renew.C:
			view := r.cfg.View()
			for _, g := range r.registered() {
				r.update(view, g, true)
			}
		case <-r.wake:
			if !pace.Wait(ctx) {
				return nil
			}
			r.updateDirty()
		}
	}
}

// registered returns the groups with registered instances.
func (r *Registrar) registered() []state.GroupKey {
	out := make([]state.GroupKey, 0, len(r.keys))
	for g := range r.keys {
		out = append(out, g)
	}
	return out
}

// updateDirty updates the groups that changed.
func (r *Registrar) updateDirty() {
	r.mu.Lock()
	dirty := r.dirty
	r.dirty = map[state.GroupKey]struct{}{}
	r.mu.Unlock()
	view := r.cfg.View() // after the list, so that it has every change that put a group on the list
	for g := range dirty {
		r.update(view, g, false)
	}
}

// update makes the store equal to the state of one group.
func (r *Registrar) update(view *state.View, key state.GroupKey, all bool) {
	if put, removed := r.derive(view, key, all); len(put)+len(removed) > 0 {
		r.warn(r.cfg.Store.Update(r.cfg.Region, put, removed))
	}
}

// derive returns the instances of one group, and the keys of those that it has no more. Unless all is true, it skips
// a group that has no services in the versions that its slots want.
func (r *Registrar) derive(view *state.View, key state.GroupKey, all bool) (put []*catalog.Instance, removed []string) {
	was := r.keys[key]
	g, found := view.Group(key)
	if found && !all && len(was) == 0 && !slices.ContainsFunc(g.Slots, func(s *state.Slot) bool { return len(r.services(view, key, s.JobVersion)) > 0 }) {
		return nil, nil
	}
	put = register.Instances(view.GroupAllocs(key), register.Group{
		Region: r.cfg.Region, Job: wire.JobName(key.Job, key.Local, r.cfg.Region),
		Services: func(version int64) []register.Service { return r.services(view, key, version) },
		Up:       tasksAreUp,
		Address: func(node string) string {
			n, _ := view.Node(node)
			if n == nil {
				return ""
			}
			return n.Address
		},
	})
	now := map[string]bool{}
	var keys []string
	for _, i := range put {
		now[i.Key()], keys = true, append(keys, i.Key())
	}
	for _, k := range was {
		if !now[k] {
			removed = append(removed, k)
		}
	}
	if len(keys) > 0 {
		r.keys[key] = keys
	} else {
		delete(r.keys, key)
	}
	return put, removed
}

// warn says that instances did not fit, at most once in warnEach.
func (r *Registrar) warn(err error) {
	if errors.Is(err, discovery.ErrFull) && time.Since(r.warned) >= warnEach {
		r.warned = time.Now()
		r.cfg.Log.Warn("services are not complete: name fewer services, or run fewer instances with services", "error", err)
		if r.cfg.Full != nil {
			r.cfg.Full(err)
		}
	}
}

// services returns the services of a group in a version of its job, sorted by name.
func (r *Registrar) services(view *state.View, key state.GroupKey, version int64) []register.Service {
	j, found := view.Job(key.JobKey(), version)
	if !found {
		return nil
	}
	at := spec{j, key.Group}
	if out, cached := r.specs[at]; cached {
		return out
	}
	if len(r.specs) >= maxSpecs {
		clear(r.specs)
	}
	out := servicesOf(j.Spec, key.Group)
	r.specs[at] = out
	return out
}

// servicesOf returns the services of a group in an encoded spec, sorted by name.
func servicesOf(raw []byte, group string) (out []register.Service) {
	encoded, err := wire.EncodedGroup(raw, group)
	if err != nil || !wire.HasServices(encoded) {
		return nil // most groups have none, and each job has another spec
	}
	g := &nusav1.Group{}
	if proto.Unmarshal(encoded, g) != nil {
		return nil
	}
	for name, s := range g.GetServices() {
		if !catalog.IsLabel(name) { // the global tier of an earlier version has not checked it
			continue
		}
		out = append(out, register.Service{Name: name, Port: s.GetPort(), Tags: slices.Sorted(slices.Values(s.GetTags())), Checks: s.GetChecks()})
	}
	slices.SortFunc(out, func(a, b register.Service) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// tasksAreUp reports whether all named tasks run. A task with a check is starting until the check passes.
func tasksAreUp(tasks []byte, names []string) bool {
	all := wire.TasksFromStored(tasks)
	return !slices.ContainsFunc(names, func(n string) bool { return all[n].GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING })
}
