package job

import (
	"fmt"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// leastAfter is the least value of `after`, because servers do not notice a shorter
// silence.
const leastAfter = time.Second

// UsualNotice is the silence after which a federation with the default lease of regions
// notices the loss of a region. Messages name this time, because the job's federation is
// not known.
const UsualNotice = 8 * time.Second

const (
	keepRunning = nusav1.Running_RUNNING_KEEP
	stopRunning = nusav1.Running_RUNNING_STOP
)

// BindingOf returns the leases that bind the instances of a group. The group's defaults
// need not be filled in. local says that the job was submitted to a region, so that no
// region lease binds it.
func BindingOf(g *nusav1.Group, local bool) nusav1.LeaseBinding {
	level := g.GetDisconnect().GetRegion().GetRunning()
	node := g.GetSingleton() || g.GetDisconnect().GetNode().GetRunning() == stopRunning
	region := !local && (level == stopRunning || g.GetSingleton() && level != keepRunning)
	switch {
	case node && region:
		return nusav1.LeaseBinding_LEASE_BINDING_BOTH
	case node:
		return nusav1.LeaseBinding_LEASE_BINDING_NODE
	case region:
		return nusav1.LeaseBinding_LEASE_BINDING_REGION
	}
	return nusav1.LeaseBinding_LEASE_BINDING_NONE
}

// Rebound returns a text for each group whose instances restart because a new version of
// the job changes the leases that bind them. Agents know only the leases that bound an
// instance at its start, so such instances must be replaced. The defaults of both versions
// must be filled in. local has the same meaning as in BindingOf.
func Rebound(before, after *nusav1.JobSpec, local bool) []string {
	words := map[nusav1.LeaseBinding]string{
		nusav1.LeaseBinding_LEASE_BINDING_NONE: "no lease binds it", nusav1.LeaseBinding_LEASE_BINDING_NODE: "the lease of the node binds it",
		nusav1.LeaseBinding_LEASE_BINDING_REGION: "the lease of the region binds it", nusav1.LeaseBinding_LEASE_BINDING_BOTH: "the leases of the node and the region bind it",
	}
	var out []string
	for _, name := range sorted(after.GetGroups()) {
		was, is := before.GetGroups()[name], after.GetGroups()[name]
		if was == nil || GroupHash(was) != GroupHash(is) || BindingOf(was, local) == BindingOf(is, local) {
			continue
		}
		out = append(out, fmt.Sprintf("groups.%s restarts its instances, because %s from this version on (disconnect, singleton): an instance is bound at its start", name, words[BindingOf(is, local)]))
	}
	return out
}

// bound reports whether any lease binds the instances of a group.
func bound(g *nusav1.Group) bool {
	return BindingOf(g, false) != nusav1.LeaseBinding_LEASE_BINDING_NONE
}

// stopsAnyway reports whether a group stops on a disconnected node although
// disconnect.node.running is keep. That happens if only the region lease binds the group,
// because the region lease reaches a node through the master.
func stopsAnyway(g *nusav1.Group) bool {
	return BindingOf(g, false) == nusav1.LeaseBinding_LEASE_BINDING_REGION
}

// bindingSetting returns the setting in the job file that makes a lease bind the group.
func bindingSetting(g *nusav1.Group) string {
	switch {
	case g.GetSingleton():
		return "singleton"
	case g.GetDisconnect().GetNode().GetRunning() == stopRunning:
		return "disconnect.node.running: stop"
	}
	return "disconnect.region.running: stop"
}

// checkDisconnect validates `disconnect` of a group.
func checkDisconnect(c *checker, p string, g *nusav1.Group) {
	d := g.GetDisconnect()
	for _, l := range []struct {
		name  string
		level *nusav1.DisconnectLevel
	}{{"node", d.GetNode()}, {"region", d.GetRegion()}} {
		at := c.join(p, l.name)
		least := leastAfter
		if l.name == "region" && replaces(l.level) {
			least = UsualNotice
		}
		checkAfter(c, c.join(at, "after"), l.level, least)
		c.known(c.join(at, "running"), l.level.GetRunning())
	}
	if g.GetSingleton() && d.GetNode().GetRunning() == keepRunning {
		c.fail(c.under(p, ".node.running"), "a singleton stops when its node loses contact, and keep would allow two: leave running out")
	}
	if g.GetSingleton() && d.GetRegion().GetRunning() == keepRunning && replaces(d.GetRegion()) {
		c.fail(c.under(p, ".region.running"), "a singleton that keeps running in a region without contact must not be replaced: add replace: false, or leave running out")
	}
	checkFailback(c, p, d)
	c.known(c.join(p, "reconcile"), d.GetReconcile())
}

// checkAfter validates `after` of a disconnect level. advised is the least value that usually
// has an effect.
func checkAfter(c *checker, at string, level *nusav1.DisconnectLevel, advised time.Duration) {
	after := level.GetAfter()
	if v, ok := goDuration(after); after != nil && ok && v >= 0 && v < leastAfter {
		why := "silence is noticed each second"
		if advised > leastAfter {
			why = fmt.Sprintf("a federation with the default --lease notices the loss of a region after %s", FormatDuration(advised))
		}
		c.fail(at, "%s is too short, %s: give at least %s", FormatDuration(v), why, FormatDuration(advised))
		return
	}
	c.duration(at, after, 0, maxDuration)
}

// Unnoticed returns a problem for each group with a shorter disconnect.region.after than the
// silence of a region after which a federation notices a loss. Before that nothing can move. The
// defaults of the spec must be filled in.
func Unnoticed(spec *nusav1.JobSpec, noticed time.Duration) Errors {
	if spec.GetWorkflow() != nil {
		return ofSteps(spec, func(step *nusav1.JobSpec) Errors { return Unnoticed(step, noticed) })
	}
	c := &checker{}
	for _, name := range sorted(spec.GetGroups()) {
		level := spec.GetGroups()[name].GetDisconnect().GetRegion()
		if after := level.GetAfter().AsDuration(); replaces(level) && after < noticed {
			c.fail(c.under(c.join("groups", name), ".disconnect.region.after"), "%s is too short: this federation notices the loss of a region after %s (by the lease of regions): give at least %s",
				FormatDuration(after), FormatDuration(noticed), FormatDuration(noticed))
		}
	}
	return c.errs
}

// replaces returns `replace` of a disconnect level, which is true by default.
func replaces(level *nusav1.DisconnectLevel) bool {
	return level == nil || level.Replace == nil || level.GetReplace()
}

// checkFailback validates `failback`, which says how work returns to its first region.
func checkFailback(c *checker, p string, d *nusav1.Disconnect) {
	if d.GetNode().GetFailback() != nil {
		c.fail(c.under(p, ".node.failback"), "is of disconnect.region: what was replaced on another node stays there, unless reconcile says otherwise")
	}
	f := d.GetRegion().GetFailback()
	if f == nil {
		return
	}
	at := c.under(p, ".region.failback")
	if !replaces(d.GetRegion()) {
		c.fail(at, "has no effect with replace: false, because nothing moves away: leave failback out, or set replace: true")
	}
	c.known(c.join(at, "mode"), f.GetMode())
	c.duration(c.join(at, "after"), f.GetAfter(), leastAfter, maxDuration)
}

// checkTogether validates that groups of one `colocate` list have the same settings for a
// region that is cut off, because the groups move together or not at all.
func checkTogether(c *checker, p string, groups []string, spec *nusav1.JobSpec) {
	if len(groups) < 2 {
		return
	}
	first := regionChoices(spec.GetGroups()[groups[0]])
	for _, name := range groups[1:] {
		g, known := spec.GetGroups()[name]
		if !known || spec.GetGroups()[groups[0]] == nil {
			continue // another problem is reported for the missing group
		}
		for i, choice := range regionChoices(g) {
			if choice != first[i] {
				c.fail(p, "groups %s and %s move between regions together, but differ in %s: %s and %s; give all of them the same", groups[0], name, choice.setting, first[i].value, choice.value)
				break
			}
		}
	}
}

type regionChoice struct{ setting, value string }

// regionChoices returns the settings of a group for a region that is cut off, with
// defaults.
func regionChoices(g *nusav1.Group) []regionChoice {
	d := g.GetDisconnect()
	running := d.GetRegion().GetRunning()
	if running == 0 {
		running = keepRunning
		if g.GetSingleton() {
			running = stopRunning
		}
	}
	reconcile := d.GetReconcile()
	or(&reconcile, nusav1.Reconcile_RECONCILE_KEEP_ORIGINAL)
	mode := d.GetRegion().GetFailback().GetMode()
	or(&mode, nusav1.FailbackMode_FAILBACK_MODE_REVIEW)
	word := func(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
	return []regionChoice{
		{"disconnect.region.running", word(running.String(), "RUNNING_")},
		{"disconnect.region.replace", fmt.Sprint(replaces(d.GetRegion()))},
		{"disconnect.region.failback.mode", word(mode.String(), "FAILBACK_MODE_")},
		{"disconnect.reconcile", word(reconcile.String(), "RECONCILE_")},
	}
}
