package confine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/glob"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the limits of a namespace.
const (
	maxPatterns    = 64
	maxDescription = 256
)

// Validate checks the limits of a namespace. Its error names all problems.
func Validate(n *nusav1.Namespace) error {
	var out job.Errors
	fail := func(field, format string, args ...any) {
		out = append(out, job.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if !job.ValidName(n.GetName()) {
		fail("name", "%q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", n.GetName())
	}
	if len(n.GetDescription()) > maxDescription || !utf8.ValidString(n.GetDescription()) {
		fail("description", "%d bytes long, the limit is %d bytes of UTF-8", len(n.GetDescription()), maxDescription)
	}
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"drivers", n.GetDrivers()}, {"pools", n.GetPools()}, {"regions", n.GetRegions()}} {
		if len(list.patterns) > maxPatterns {
			fail(list.field, "%d entries, the limit is %d", len(list.patterns), maxPatterns)
			continue
		}
		for i, p := range list.patterns {
			if err := glob.Check(p); err != nil {
				fail(fmt.Sprintf("%s[%d]", list.field, i), "%s", err)
			}
		}
	}
	if len(out) > 0 {
		return out
	}
	return nil
}

// Confine returns what a valid spec with its defaults asks for, and what its namespace does not allow.
// region is that of a region's own job, and empty for a job of the federation.
func Confine(spec *nusav1.JobSpec, n *nusav1.Namespace, region string) job.Errors {
	var ofSteps job.Errors
	for name, step := range job.Steps(spec) {
		for _, p := range Confine(step, n, region) {
			p.Field = "workflow.steps." + name + "." + p.Field
			ofSteps = append(ofSteps, p)
		}
	}
	if spec.GetWorkflow() != nil {
		return ofSteps
	}
	c := &confiner{of: n}
	if region != "" && !within(n.GetRegions(), region) {
		c.not("", fmt.Sprintf("its jobs may not run in region %s", region), "regions", n.GetRegions())
	}
	for _, name := range sorted(spec.GetGroups()) {
		g := spec.GetGroups()[name]
		p := "groups." + name
		if !within(n.GetPools(), g.GetPool()) {
			c.not(p+".pool", fmt.Sprintf("its jobs may not use the pool %s", g.GetPool()), "pools", n.GetPools())
		}
		if region == "" {
			c.regions(spec, name)
		}
		if volumes := sorted(g.GetVolumes()); n.GetForbidHostVolumes() && len(volumes) > 0 {
			c.not(p+".volumes."+volumes[0]+".source", "its jobs may use no folder of the host", "forbid", []string{"host-volumes"})
		}
		for _, task := range sorted(g.GetTasks()) {
			c.task(p+".tasks."+task, g.GetTasks()[task])
		}
	}
	return c.problems
}

// confiner collects what a namespace does not allow.
type confiner struct {
	of       *nusav1.Namespace
	problems job.Errors
}

// not adds a problem, with the setting of the namespace that causes it.
func (c *confiner) not(field, why, setting string, values []string) {
	c.problems = append(c.problems, job.Problem{
		Field: field, Reason: nusav1.Reason_REASON_NOT_ALLOWED,
		Message: fmt.Sprintf("not allowed in namespace %s: %s (--%s %s)", c.of.GetName(), why, setting, strings.Join(values, ",")),
	})
}

// regions checks the regions of a group, which must name the regions that it may use.
func (c *confiner) regions(spec *nusav1.JobSpec, group string) {
	if len(c.of.GetRegions()) == 0 || slices.ContainsFunc(c.of.GetRegions(), glob.All) {
		return
	}
	field := "regions.allow"
	if spec.GetGroups()[group].GetRegions() != nil {
		field = "groups." + group + ".regions.allow"
	}
	allow := job.RegionsOf(spec, group).GetAllow()
	if len(allow) == 0 {
		c.not(field, "name the regions that the job may use", "regions", c.of.GetRegions())
	}
	for i, s := range allow {
		switch {
		case s.GetName() == "":
			c.not(fmt.Sprintf("%s[%d]", field, i), "name the region, labels alone may also match others", "regions", c.of.GetRegions())
		case !within(c.of.GetRegions(), s.GetName()):
			c.not(fmt.Sprintf("%s[%d].name", field, i), fmt.Sprintf("its jobs may not run in region %s", s.GetName()), "regions", c.of.GetRegions())
		}
	}
}

func (c *confiner) task(p string, t *nusav1.Task) {
	if !within(c.of.GetDrivers(), t.GetDriver()) {
		c.not(p+".driver", fmt.Sprintf("its jobs may not use the driver %s", t.GetDriver()), "drivers", c.of.GetDrivers())
	}
	if c.of.GetForbidRoot() && t.GetDriver() == "process" {
		switch user := job.ProcessConfigOf(t).User; {
		case strings.Contains(user, "${"):
			c.not(p+".config.user", fmt.Sprintf("the user %q is known only when the task starts, and may be root: name it", user), "forbid", []string{"root"})
		case user == "":
			c.not(p+".config.user", "jobs may not run as root: name another user, because the agent's user may be root", "forbid", []string{"root"})
		case isRoot(user):
			c.not(p+".config.user", "jobs may not run as "+user, "forbid", []string{"root"})
		}
	}
	if !c.of.GetForbidPrivileged() {
		return
	}
	fields := t.GetConfig().GetFields()
	switch t.GetDriver() {
	case "docker":
		// The driver reads texts, too. So every value but false counts.
		if v := fields["privileged"]; v != nil && !isFalse(v) {
			c.not(p+".config.privileged", "jobs may not have privileged containers", "forbid", []string{"privileged"})
		}
	case "incus":
		field, why := IncusPrivilege(fields["type"].GetStringValue(), textsOf(fields["config"]), devicesOf(fields["devices"]))
		if why != "" {
			c.not(p+"."+field, why, "forbid", []string{"privileged"})
		}
		for i, v := range fields["profiles"].GetListValue().GetValues() {
			if v.GetStringValue() != "default" {
				c.not(fmt.Sprintf("%s.config.profiles[%d]", p, i), fmt.Sprintf("the profile %s may give access to the host", v.GetStringValue()), "forbid", []string{"privileged"})
			}
		}
	}
}

// within reports whether a name matches one of some patterns, or there are no patterns.
func within(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return glob.Match(p, name) })
}

// isRoot reports whether a user of a task (USER, UID, USER:GROUP) is root, by its name or number.
func isRoot(user string) bool {
	user, _, _ = strings.Cut(user, ":")
	return user == "root" || strings.Trim(strings.TrimPrefix(user, "+"), "0") == ""
}

func isFalse(v *structpb.Value) bool {
	b, ok := v.GetKind().(*structpb.Value_BoolValue)
	return ok && !b.BoolValue
}

// textsOf returns a map as the engine gets it, which has texts only. Lists and maps become texts
// that are not harmless.
func textsOf(v *structpb.Value) map[string]string {
	out := map[string]string{}
	for k, x := range v.GetStructValue().GetFields() {
		switch x := x.GetKind().(type) {
		case *structpb.Value_StringValue:
			out[k] = x.StringValue
		case *structpb.Value_BoolValue:
			out[k] = strconv.FormatBool(x.BoolValue)
		case *structpb.Value_NumberValue:
			out[k] = fmt.Sprint(x.NumberValue)
		default:
			out[k] = "\x00"
		}
	}
	return out
}

func devicesOf(v *structpb.Value) map[string]map[string]string {
	out := map[string]map[string]string{}
	for k, x := range v.GetStructValue().GetFields() {
		out[k] = textsOf(x)
	}
	return out
}

// sorted returns the keys of a map in order.
func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
