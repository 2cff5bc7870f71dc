package wire

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// Deterministic encodes equal messages to equal bytes.
var Deterministic = proto.MarshalOptions{Deterministic: true}

// JobFromProto converts a spec whose defaults are set. raw is the deterministic encoding of
// the spec. It is nil for a job that is not to be stored.
func JobFromProto(spec *nusav1.JobSpec, raw []byte, local bool, version int64) *state.Job {
	j := &state.Job{
		Key:      state.JobKey{Namespace: spec.GetNamespace(), Job: spec.GetName(), Local: local},
		Version:  version,
		Type:     state.JobType(spec.GetType()),
		Priority: spec.GetPriority(),
		Spec:     raw,
	}
	for _, name := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		g := groupFromProto(name, spec.GetGroups()[name])
		needLeaseBinding(&g, local)
		if encoded, err := EncodedGroup(raw, name); err == nil {
			g.Hash, g.Rest = job.EncodedGroupHash(encoded), job.EncodedRestHash(encoded) // avoids encoding the group again
		} else {
			g.Hash, g.Rest = job.GroupHash(spec.GetGroups()[name]), job.RestHash(spec.GetGroups()[name])
		}
		j.Groups = append(j.Groups, g)
	}
	return j
}

// needLeaseBinding adds the capability state.LeaseBinding to the drivers that a group asks
// for, if agents of an earlier version could not enforce the group's lease. Such agents
// enforce only the lease of their node.
func needLeaseBinding(g *state.Group, local bool) {
	if b := g.Binding(local); !g.Singleton && b != state.BindRegion && b != state.BindBoth {
		return
	}
	for i := range g.Ask.Drivers {
		d := &g.Ask.Drivers[i]
		d.Capabilities = append(slices.Clone(d.Capabilities), state.LeaseBinding)
		slices.Sort(d.Capabilities)
	}
}

func groupFromProto(name string, g *nusav1.Group) state.Group {
	node := g.GetDisconnect().GetNode()
	out := state.Group{
		Name:      name,
		Count:     g.GetCount(),
		Ask:       askFromProto(g),
		Singleton: g.GetSingleton(),
		Reschedule: state.Reschedule{
			Attempts: g.GetReschedule().GetAttempts(),
			From:     g.GetReschedule().GetBackoff().GetFrom().AsDuration(),
			To:       g.GetReschedule().GetBackoff().GetTo().AsDuration(),
		},
		Disconnect: state.Disconnect{
			After:           node.GetAfter().AsDuration(),
			StopRunning:     node.GetRunning() == nusav1.Running_RUNNING_STOP,
			Replace:         node == nil || node.Replace == nil || node.GetReplace(),
			KeepReplacement: g.GetDisconnect().GetReconcile() == nusav1.Reconcile_RECONCILE_KEEP_REPLACEMENT,
			StopInRegion:    g.GetDisconnect().GetRegion().GetRunning() == nusav1.Running_RUNNING_STOP,
		},
		MaxParallel: g.GetUpdate().GetMaxParallel(),
		Parallel:    g.GetParallel(),
		MaxRuntime:  g.GetMaxRuntime().AsDuration(),
		Stagger:     g.GetUpdate().GetStagger().AsDuration(),
	}
	if d := g.GetUpdate().GetMinHealthy(); d != nil {
		out.MinHealthy = cmp.Or(d.AsDuration(), state.NoMinHealthy)
	}
	if r := g.GetRetry(); r != nil {
		out.Retry = retryFromProto(r, out.Ask.Resources.MemoryBytes)
	}
	for _, t := range g.GetTasks() {
		out.KillTimeout = max(out.KillTimeout, t.GetKillTimeout().AsDuration())
	}
	return out
}

// MaxAttempts bounds the instances in SlotAnswer.attempts, SlotOrder.attempts and JobSummary.attempts.
const MaxAttempts = 1024

// AttemptsToProto returns what instances of a slot have used of their retry policy: those with an index
// from ≤ i < to. Of more than MaxAttempts, it returns those with the most failures.
func AttemptsToProto(view *state.View, s *state.Slot, from, to int32) (out []*nusav1.InstanceAttempts) {
	for in := range view.Instances(s.Key()) {
		if in.Index < from || in.Index >= to || in.Version != s.JobVersion || !s.OfRun(in.Run) || in.Done {
			continue
		}
		if used := retry.UsedOf(in.Retry, in.Failures, in.Exhausted); !used.Nothing() {
			out = append(out, &nusav1.InstanceAttempts{
				Index: in.Index, Failures: used.Failures, ByRule: used.ByRule, Permanent: used.Permanent, MemoryBytes: used.MemoryBytes, Exhausted: used.Exhausted,
			})
		}
	}
	return MostFailures(out, MaxAttempts)
}

// MostFailures returns at most n of some instances, those with the most failures, by index.
func MostFailures(all []*nusav1.InstanceAttempts, n int) []*nusav1.InstanceAttempts {
	if len(all) <= n {
		return all
	}
	slices.SortStableFunc(all, func(a, b *nusav1.InstanceAttempts) int { return cmp.Compare(b.GetFailures(), a.GetFailures()) })
	all = all[:n]
	slices.SortFunc(all, func(a, b *nusav1.InstanceAttempts) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return all
}

// AttemptsFromProto is the inverse of AttemptsToProto. It ignores values that no region sends.
func AttemptsFromProto(all []*nusav1.InstanceAttempts) (out []state.Attempts) {
	for _, a := range all[:min(len(all), MaxAttempts)] {
		rules := a.GetByRule()
		if a.GetIndex() < 0 || a.GetFailures() < 0 || a.GetMemoryBytes() < 0 || len(rules) > job.MaxRetryRules {
			continue
		}
		out = append(out, state.Attempts{Index: a.GetIndex(), Used: retry.Used{
			Failures: a.GetFailures(), ByRule: rules, Permanent: a.GetPermanent(), MemoryBytes: a.GetMemoryBytes(), Exhausted: a.GetExhausted(),
		}})
	}
	return out
}

// defaultRetry is the rule for failures that no rule of a retry policy matches.
var defaultRetry = retry.Rule{Attempts: -1, From: 5 * time.Second, To: 10 * time.Minute}

func retryFromProto(r *nusav1.Retry, memory int64) *retry.Policy {
	p := &retry.Policy{Attempts: r.GetAttempts(), Default: defaultRetry}
	for _, rule := range r.GetRules() {
		to := retry.Rule{
			ExitCodes: rule.GetExitCodes(), Fail: rule.GetAction() == nusav1.RetryAction_RETRY_ACTION_FAIL, Attempts: -1,
			From: rule.GetBackoff().GetFrom().AsDuration(), To: rule.GetBackoff().GetTo().AsDuration(),
			OtherRegion: rule.GetOther() == nusav1.RetryOther_RETRY_OTHER_REGION,
		}
		if rule.Attempts != nil {
			to.Attempts = rule.GetAttempts()
		}
		if m := rule.GetMemory(); m != nil {
			to.MemoryMilli, to.MemoryLimit, p.MemoryBytes = int64(m.GetFactor()*1000), m.GetLimitBytes(), memory
		}
		for _, name := range rule.GetSignals() {
			to.Signals = append(to.Signals, job.EndSignal(name))
		}
		for _, c := range rule.GetCategories() {
			to.Categories = append(to.Categories, CategoryFromProto(c))
		}
		p.Rules = append(p.Rules, to)
	}
	return p
}

func askFromProto(g *nusav1.Group) state.Ask {
	a := job.AskOf(g)
	out := state.Ask{
		Resources:   state.Resources{CPUMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes},
		Pool:        a.Pool,
		Dedicated:   a.Dedicated,
		Constraints: slices.Sorted(slices.Values(a.Constraints)),
		Spread:      a.SpreadBy,
		Apart:       a.Apart,
		Volumes:     a.Volumes,
	}
	for _, d := range a.Drivers {
		out.Drivers = append(out.Drivers, state.DriverAsk{Name: d, Capabilities: a.Needs[d]})
	}
	for _, p := range a.Ports {
		out.Ports = append(out.Ports, state.PortAsk{Label: p.Label, Static: p.Static})
	}
	for _, f := range a.Affinities {
		out.Affinities = append(out.Affinities, state.Affinity{Expr: f.Expression, Weight: f.Weight})
	}
	slices.SortFunc(out.Affinities, func(a, b state.Affinity) int {
		return cmp.Or(strings.Compare(a.Expr, b.Expr), cmp.Compare(a.Weight, b.Weight))
	})
	for _, name := range slices.Sorted(maps.Keys(g.GetTasks())) {
		if gpu := g.GetTasks()[name].GetResources().GetGpu(); gpu.GetCount() > 0 || gpu.GetShareMilli() > 0 {
			out.GPUs = append(out.GPUs, state.GPUAsk{
				Count: gpu.GetCount(), ShareMilli: gpu.GetShareMilli(),
				Models: slices.Sorted(slices.Values(gpu.GetModels())),
			})
		}
	}
	return out
}

// ShapeAskFromProto converts the ask of a shape subscription.
func ShapeAskFromProto(s *nusav1.ShapeSubscription) *state.Ask {
	a := &state.Ask{
		Resources:   ResourcesFromProto(s.GetResources()),
		Pool:        cmp.Or(s.GetPool(), job.DefaultPool),
		Dedicated:   s.GetDedicated(),
		Constraints: slices.Sorted(slices.Values(s.GetConstraints())),
		Apart:       slices.Sorted(slices.Values(s.GetApart())),
		Volumes:     slices.Sorted(slices.Values(s.GetVolumes())),
	}
	for _, d := range slices.Sorted(slices.Values(s.GetDrivers())) {
		ask := state.DriverAsk{Name: d}
		for _, c := range slices.Sorted(slices.Values(s.GetCapabilities())) {
			if need, ok := strings.CutPrefix(c, d+"/"); ok {
				ask.Capabilities = append(ask.Capabilities, need)
			}
		}
		a.Drivers = append(a.Drivers, ask)
	}
	for i, p := range slices.Sorted(slices.Values(s.GetStaticPorts())) {
		a.Ports = append(a.Ports, state.PortAsk{Label: fmt.Sprintf("s%d", i), Static: p})
	}
	for i := range s.GetDynamicPorts() {
		a.Ports = append(a.Ports, state.PortAsk{Label: fmt.Sprintf("d%d", i)})
	}
	if gpu := s.GetResources().GetGpu(); gpu.GetCount() > 0 || gpu.GetShareMilli() > 0 {
		a.GPUs = []state.GPUAsk{{Count: gpu.GetCount(), ShareMilli: gpu.GetShareMilli(), Models: gpu.GetModels()}}
	}
	return a
}

// NodeFromProto converts the hello of an agent to a node.
func NodeFromProto(hello *nusav1.AgentHello) state.Node {
	inv := hello.GetInventory()
	facts := inv.GetFacts()
	raw, _ := Deterministic.Marshal(inv) // cannot fail: the inventory was decoded before
	n := state.Node{
		ID: hello.GetNodeId(), Name: hello.GetName(), Address: hello.GetAddress(),
		Pool:          cmp.Or(inv.GetPool(), job.DefaultPool),
		Labels:        inv.GetLabels(),
		Capacity:      ResourcesFromProto(inv.GetCapacity()),
		InstanceQuota: inv.GetInstanceQuota(),
		PortMin:       inv.GetPortMin(), PortMax: inv.GetPortMax(),
		ControlPlane:  inv.GetControlPlane(),
		SharedMachine: inv.GetSharedMachine(),
		Facts: state.Facts{
			Hostname: facts.GetHostname(), OS: facts.GetOs(),
			Platform: facts.GetPlatform(), PlatformVersion: facts.GetPlatformVersion(),
			Kernel: facts.GetKernel(), Arch: facts.GetArch(), Virtualization: facts.GetVirtualization(),
			CPUModel: facts.GetCpuModel(), CPUCores: facts.GetCpuCores(), MemoryBytes: facts.GetMemoryBytes(),
			AgentVersion: inv.GetVersion(),
		},
		Inventory:       raw,
		VolumesAllow:    inv.GetVolumesAllow().GetFolders(),
		VolumesReported: inv.GetVolumesAllow() != nil,
		Status:          state.NodeReady,
	}
	for _, d := range inv.GetDrivers() {
		have := state.Driver{Name: d.GetName(), Healthy: d.GetHealthy(), Capabilities: d.GetCapabilities()}
		if hello.GetFeatureLevel() >= 1 {
			have.Capabilities = append(slices.Clone(have.Capabilities), state.LeaseBinding)
		}
		n.Drivers = append(n.Drivers, have)
	}
	for _, g := range inv.GetGpus() {
		n.GPUs = append(n.GPUs, state.GPU{ID: g.GetId(), Model: g.GetModel(), MemoryBytes: g.GetMemoryBytes()})
	}
	return n
}

// ResourcesFromProto converts resources. It ignores GPUs.
func ResourcesFromProto(r *nusav1.Resources) state.Resources {
	return state.Resources{CPUMilli: r.GetCpuMilli(), MemoryBytes: r.GetMemoryBytes(), DiskBytes: r.GetDiskBytes()}
}

// EncodedGroup returns the bytes of one group in an encoded spec, without decoding the
// spec. The groups are a map, which protobuf encodes as a list of entries.
func EncodedGroup(spec []byte, name string) ([]byte, error) {
	for len(spec) > 0 {
		field, kind, n := protowire.ConsumeField(spec)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		if field == specGroups && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(spec)
			item, _ := protowire.ConsumeBytes(spec[tag:])
			key, value, err := mapEntry(item)
			if err != nil {
				return nil, err
			}
			if key == name {
				return value, nil
			}
		}
		spec = spec[n:]
	}
	return nil, fmt.Errorf("the spec has no group %q", name)
}

// EncodedLabels returns the labels of an encoded spec. It decodes nothing else, because most callers have
// another spec for each call.
func EncodedLabels(spec []byte) (map[string]string, error) {
	var labels map[string]string
	for len(spec) > 0 {
		field, kind, n := protowire.ConsumeField(spec)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		if field == specLabels && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(spec)
			item, _ := protowire.ConsumeBytes(spec[tag:])
			key, value, err := mapEntry(item)
			if err != nil {
				return nil, err
			}
			if labels == nil {
				labels = map[string]string{}
			}
			labels[key] = string(value)
		}
		spec = spec[n:]
	}
	return labels, nil
}

// HasServices reports whether an encoded group has services.
func HasServices(group []byte) bool {
	for len(group) > 0 {
		field, _, n := protowire.ConsumeField(group)
		if n < 0 || field == groupServices {
			return n > 0
		}
		group = group[n:]
	}
	return false
}

// mapEntry splits an encoded map entry into its key and its value.
func mapEntry(b []byte) (key string, value []byte, err error) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeField(b)
		if n < 0 {
			return "", nil, protowire.ParseError(n)
		}
		if kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			bytes, _ := protowire.ConsumeBytes(b[tag:])
			switch field {
			case entryKey:
				key = string(bytes)
			case entryValue:
				value = bytes
			}
		}
		b = b[n:]
	}
	return key, value, nil
}

// jobTypeName returns the name that job files use for a job type.
func jobTypeName(t nusav1.JobType) string {
	return strings.ToLower(strings.TrimPrefix(t.String(), "JOB_TYPE_"))
}
