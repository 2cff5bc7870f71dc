package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// drivers are the built-in drivers. A name that resembles one of these counts as a
// mistyped built-in driver. Any other name counts as a plugin.
var drivers = []string{"docker", "incus", "process"}

// reserveDriver is built in, too. But names that resemble it are names of plugins.
const reserveDriver = "reserve"

// CheckPluginName returns an error for a name that a plugin cannot have. The name must not
// resemble the name of a built-in driver. Otherwise a job with a mistyped driver would wait for a
// plugin.
func CheckPluginName(name string) error {
	switch near := suggest.Nearest(name, drivers); {
	case !ValidName(name):
		return fmt.Errorf("%q is not a name of a driver: lower-case letters, digits and dashes", clip(name))
	case slices.Contains(drivers, name), name == reserveDriver:
		return fmt.Errorf("there is a driver %s already", name)
	case near != "":
		return fmt.Errorf("%s is too much like the driver %s", name, near)
	}
	return nil
}

// Unsupported returns a problem for each valid setting of a spec that is not supported
// yet. A server refuses a submit of a spec with such problems.
func Unsupported(spec *nusav1.JobSpec) Errors {
	if spec.GetWorkflow() != nil {
		return ofSteps(spec, Unsupported)
	}
	c := &checker{quiet: true}
	if c.supported(spec); !c.wrong {
		return nil
	}
	c = &checker{}
	c.supported(spec)
	return dedupe(c.errs)
}

func (c *checker) supported(spec *nusav1.JobSpec) {
	refuse := func(cond bool, path, by string) {
		if cond {
			c.refuse(path, "not supported yet"+by)
		}
	}
	for _, k := range sorted(spec.GetGroups()) {
		g, p := spec.GetGroups()[k], c.join("groups", k)
		for _, name := range sorted(g.GetTasks()) {
			t, at := g.GetTasks()[name], c.join(c.join(p, "tasks"), name)
			by := " by driver " + t.GetDriver()
			// A name that does not resemble a built-in driver is taken for the name of a plugin,
			// which nodes report.
			if !slices.Contains(drivers, t.GetDriver()) && suggest.Nearest(t.GetDriver(), drivers) != "" {
				c.refuse(c.join(at, "driver"), fmt.Sprintf("there is no driver %q%s", clip(t.GetDriver()), didYouMean(t.GetDriver(), drivers)))
				continue
			}
			gpu := t.GetResources().GetGpu()
			gives := t.GetDriver() == "process" || t.GetDriver() == "docker"
			refuse(!gives && gpu.GetCount()+gpu.GetShareMilli() > 0 && slices.Contains(drivers, t.GetDriver()), c.under(at, ".resources.gpu"), by)
		}
	}
}

// FurtherDrivers returns the drivers of a spec that are not built in, sorted, each once. Only a node
// with a plugin of that name can run such a task.
func FurtherDrivers(spec *nusav1.JobSpec) (out []string) {
	for _, g := range spec.GetGroups() {
		for _, t := range g.GetTasks() {
			if !slices.Contains(drivers, t.GetDriver()) && t.GetDriver() != reserveDriver {
				out = append(out, t.GetDriver())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// refuse adds a problem for a valid setting that is not supported.
func (c *checker) refuse(path, message string) {
	c.wrong = true
	if !c.quiet {
		c.errs = append(c.errs, Problem{Field: path, Message: message, Reason: nusav1.Reason_REASON_UNSUPPORTED})
	}
}

// dedupe removes repeated problems.
func dedupe(in Errors) Errors {
	seen := map[string]bool{}
	var out Errors
	for _, p := range in {
		if !seen[p.Error()] {
			seen[p.Error()] = true
			out = append(out, p)
		}
	}
	return out
}

// Warnings returns texts about settings that are risky or probably a mistake. The spec
// must be valid, and its defaults filled in.
func Warnings(spec *nusav1.JobSpec) []string {
	var out []string
	for name, step := range Steps(spec) {
		for _, text := range Warnings(step) {
			out = append(out, "workflow.steps."+name+": "+text)
		}
	}
	for _, k := range sorted(spec.GetGroups()) {
		g := spec.GetGroups()[k]
		if g.Count != nil && g.GetCount() == 0 {
			out = append(out, fmt.Sprintf("groups.%s has a count of 0: nothing of it runs", k))
		}
		for _, l := range levelsOf(g) {
			if after := l.GetAfter().AsDuration(); mayRunTwice(g, l) && after < l.least {
				out = append(out, fmt.Sprintf("groups.%s replaces instances of a %s that is cut off for only %s (disconnect.%s.after), while they may still run there: a short network fault makes them run twice", k, l.name, FormatDuration(after), l.name))
			}
		}
		if where := ignoredPrefer(spec, k); where != "" {
			out = append(out, fmt.Sprintf("groups.%s is divided among all regions that fit, so only a part of it runs where %s.prefer says (%s.divide: capacity): with divide: best all of it does, as far as there is room", k, where, where))
		}
		if stopsAnyway(g) {
			out = append(out, fmt.Sprintf("groups.%s keeps running on a node that is cut off (disconnect.node.running: keep), but only until the region's lease ends (disconnect.region.running: stop): a node gets that lease from its master, so it stops there, too; if that is meant, write disconnect.node.running: stop, too", k))
		}
		for _, name := range sorted(g.GetTasks()) {
			for i, a := range g.GetTasks()[name].GetArtifacts() {
				if a.GetChecksum() == "" && strings.HasPrefix(a.GetSource(), "https:") {
					out = append(out, fmt.Sprintf("groups.%s.tasks.%s.artifacts[%d] has no checksum: a change of the file there changes what runs here", k, name, i))
				}
			}
		}
	}
	return out
}

// ignoredPrefer returns the setting with `prefer` of a group of several instances that is divided
// by the capacity of all regions all the same. Empty: there is none.
func ignoredPrefer(spec *nusav1.JobSpec, name string) string {
	where, regions, g := "regions", spec.GetRegions(), spec.GetGroups()[name]
	if g.GetRegions() != nil {
		where, regions = "groups."+name+".regions", g.GetRegions()
	}
	if regions.GetDivide() != nusav1.Divide_DIVIDE_CAPACITY || len(regions.GetPrefer()) == 0 || instances(g) < 2 {
		return ""
	}
	return where
}

// Notes returns facts about a spec that need no action, because they are true of most
// jobs. Clients show them on request only. The spec must be valid, and its defaults filled
// in.
func Notes(spec *nusav1.JobSpec) []string {
	twice := map[string][]string{} // by text: the groups whose instances may run twice
	for _, k := range sorted(spec.GetGroups()) {
		g := spec.GetGroups()[k]
		var cut []string
		for _, l := range levelsOf(g) {
			if mayRunTwice(g, l) {
				cut = append(cut, "a "+l.name+" is cut off for more than "+FormatDuration(l.GetAfter().AsDuration()))
			}
		}
		if len(cut) > 0 {
			when := strings.Join(cut, ", or ")
			twice[when] = append(twice[when], "groups."+k)
		}
	}
	var out []string
	for _, when := range sorted(twice) {
		out = append(out, fmt.Sprintf("%s may run an instance twice while %s (disconnect: keep and replace)", strings.Join(twice[when], ", "), when))
	}
	return out
}

// level is one level of `disconnect`. An `after` of less than least is risky.
type level struct {
	*nusav1.DisconnectLevel
	name  string
	least time.Duration
}

func levelsOf(g *nusav1.Group) [2]level {
	d := g.GetDisconnect()
	return [2]level{{d.GetNode(), "node", defaultNodeAfter}, {d.GetRegion(), "region", defaultRegionAfter}}
}

// mayRunTwice reports whether instances of a group continue to run when a node or region
// is cut off, and are replaced elsewhere as well.
func mayRunTwice(g *nusav1.Group, l level) bool {
	lease := l.name == "node" && stopsAnyway(g) // a lease ends the instances before they are replaced
	return g.GetCount() > 0 && l.GetRunning() == keepRunning && l.GetReplace() && !lease
}

// UnknownRegions returns a problem for each region that the spec names and that does not
// exist. known lists the regions that exist. Without this check a job with a mistyped
// region would wait for ever.
func UnknownRegions(spec *nusav1.JobSpec, known []string) Errors {
	var out Errors
	eachRegion(spec, func(path, name string) {
		if !slices.Contains(known, name) {
			out = append(out, Problem{Field: path, Message: fmt.Sprintf("there is no region %q%s", clip(name), didYouMean(name, known))})
		}
	})
	return out
}

// Regions returns the regions that a spec names, each once.
func Regions(spec *nusav1.JobSpec) (names []string) {
	eachRegion(spec, func(_, name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	})
	return names
}

// Rule is one entry of allow, prefer or near.
type Rule struct {
	// Path is the field of the entry, for example "regions.allow[0]".
	Path string
	// Selector and Domain are those of the entry. An entry of near with a location has neither.
	Selector *nusav1.RegionSelector
	Domain   string
}

// Rules returns the rules of a spec that have labels or a domain, also those of the steps of a workflow.
func Rules(spec *nusav1.JobSpec) (out []Rule) {
	eachRule(spec, func(r Rule, _ string) {
		if r.Domain != "" || len(r.Selector.GetLabels()) > 0 {
			out = append(out, r)
		}
	})
	return out
}

// eachRule calls visit for each rule in a spec. name is the field of the rule for the name of a region.
func eachRule(spec *nusav1.JobSpec, visit func(r Rule, name string)) {
	walk := func(path string, r *nusav1.RegionsSpec) {
		for i, s := range r.GetAllow() {
			visit(Rule{Path: fmt.Sprintf("%s.allow[%d]", path, i), Selector: s}, "name")
		}
		for i, s := range r.GetPrefer() {
			visit(Rule{Path: fmt.Sprintf("%s.prefer[%d]", path, i), Selector: s.GetSelector()}, "name")
		}
		for i, s := range r.GetNear() {
			visit(Rule{Path: fmt.Sprintf("%s.near[%d]", path, i), Selector: s.GetSelector(), Domain: s.GetDomain()}, "region")
		}
	}
	walk("regions", spec.GetRegions())
	for at, of := range Inside(spec) {
		for _, name := range sorted(of.GetWorkflow().GetSteps()) {
			s := of.GetWorkflow().GetSteps()[name]
			walk("workflow.steps."+at+name+".regions", s.GetRegions())
			for _, k := range sorted(s.GetGroups()) {
				walk(join("workflow.steps."+at+name+".groups", k)+".regions", s.GetGroups()[k].GetRegions())
			}
		}
	}
	for _, k := range sorted(spec.GetGroups()) {
		walk(join("groups", k)+".regions", spec.GetGroups()[k].GetRegions())
	}
}

// eachRegion calls visit for each name of a region in a spec, with the path of the field.
func eachRegion(spec *nusav1.JobSpec, visit func(path, name string)) {
	named := func(path, name string) {
		if name != "" {
			visit(path, name)
		}
	}
	eachRule(spec, func(r Rule, name string) { named(r.Path+"."+name, r.Selector.GetName()) })
	for _, k := range sorted(spec.GetGroups()) {
		for i, name := range spec.GetGroups()[k].GetUpdate().GetRegions().GetOrder() {
			named(fmt.Sprintf("%s.update.regions.order[%d]", join("groups", k), i), name)
		}
	}
}

// EndedAlready returns a warning for the submit of an unchanged batch job if the job's
// state says that it has ended.
func EndedAlready(state nusav1.JobState) []string {
	const how = " already; run it again with nusa job run --again FILE"
	switch state {
	case nusav1.JobState_JOB_STATE_COMPLETE:
		return []string{"it has completed" + how}
	case nusav1.JobState_JOB_STATE_FAILED:
		return []string{"it has failed" + how}
	}
	return nil
}

// MissingGPUs returns a problem for each task that asks for accelerators that do not exist. have
// counts the accelerators by model. where names the place that lacks them, such as "no node of region a".
func MissingGPUs(spec *nusav1.JobSpec, have map[string]int32, where string) Errors {
	if spec.GetWorkflow() != nil {
		return ofSteps(spec, func(step *nusav1.JobSpec) Errors { return MissingGPUs(step, have, where) })
	}
	var out Errors
	for _, group := range sorted(spec.GetGroups()) {
		tasks := spec.GetGroups()[group].GetTasks()
		for _, name := range sorted(tasks) {
			ask := tasks[name].GetResources().GetGpu()
			if ask.GetCount() == 0 && ask.GetShareMilli() == 0 || offered(ask, have) {
				continue
			}
			what := "an accelerator"
			if models := ask.GetModels(); len(models) > 0 {
				what = "an accelerator " + strings.Join(models, " or ")
			}
			out = append(out, Problem{
				Field:   "groups." + group + ".tasks." + name + ".resources.gpu",
				Message: fmt.Sprintf("%s has %s (%s)", where, what, models(have)), Reason: nusav1.Reason_REASON_INSUFFICIENT_GPU,
			})
		}
	}
	return out
}

// AsksGPUs reports whether any task asks for accelerators.
func AsksGPUs(spec *nusav1.JobSpec) bool { return len(MissingGPUs(spec, nil, "")) > 0 }

// offered reports whether there is a device of a model that the ask accepts.
func offered(ask *nusav1.GPU, have map[string]int32) bool {
	for model, n := range have {
		if n > 0 && (len(ask.GetModels()) == 0 || slices.Contains(ask.GetModels(), model)) {
			return true
		}
	}
	return false
}

// models lists accelerators, such as "there are 2 × a100, 1 × t4".
func models(have map[string]int32) string {
	const most = 8
	var out []string
	for _, model := range slices.Sorted(maps.Keys(have)) {
		if have[model] > 0 {
			out = append(out, fmt.Sprintf("%d × %s", have[model], model))
		}
	}
	switch {
	case len(out) == 0:
		return "there are none: `nusa node status NODE` shows what a node offers"
	case len(out) > most:
		out = append(out[:most], "…")
	}
	return "there are " + strings.Join(out, ", ")
}
