package cloudevent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/suggest"
)

// types are the types of the durable events of the federation, in order. A test compares them with the
// code of the global tier.
var types = []string{
	"audit.gap",
	"auth.changed", "auth.unreadable",
	"bus.deleted", "bus.disabled", "bus.dropped", "bus.enabled", "bus.set", "bus.skipped",
	"deadletter.created", "deadletter.dropped", "deadletter.redriven",
	"failover.paused", "failover.resumed",
	"instance.given_up", "instance.lost",
	"intake.dead_letter", "intake.deleted", "intake.disabled", "intake.enabled", "intake.set",
	"job.complete", "job.failed", "job.overridden", "job.override_cleared", "job.purged", "job.reverted", "job.stopped", "job.submitted",
	"join_token.created", "join_token.revoked",
	"key.rotated",
	"latency.breached", "latency.kept",
	"member.banned", "member.joined", "member.removed", "member.unbanned",
	"node.back", "node.cordoned", "node.draining", "node.lost", "node.uncordoned", "node.undrained",
	"origins.removed", "origins.set",
	"region.back", "region.commits", "region.commits_blocked", "region.confirmed", "region.connected", "region.cordoned",
	"region.defined", "region.disconnected", "region.draining", "region.failback", "region.lost", "region.refused",
	"region.registered", "region.removed", "region.returned", "region.silent", "region.uncordoned", "region.undrained",
	"reservation.failed", "reservation.moved",
	"rollout.failed", "rollout.paused", "rollout.promoted", "rollout.region_done", "rollout.region_failed", "rollout.resumed",
	"schedule.missed", "schedule.paused", "schedule.resumed", "schedule.skipped",
	"server.alarm", "server.alarm_over",
	"slot.accepted", "slot.done", "slot.kept", "slot.moved", "slot.offered", "slot.rejected", "slot.returned", "slot.revoked",
	"slot.revoking", "slot.stopped", "slot.stopping", "slot.updated",
	"spare.cancelled", "spare.expired", "spare.failed", "spare.lost", "spare.notified", "spare.prepared", "spare.provisioning", "spare.released",
	"store.confirmed", "store.conflict", "store.filling", "store.log_known", "store.log_unknown", "store.recovered",
	"webhook.disabled", "webhook.dropped", "webhook.enabled", "webhook.given_up", "webhook.removed", "webhook.replayed",
	"webhook.rotated", "webhook.set", "webhook.skipped",
	"workflow.approval", "workflow.began", "workflow.ended",
}

// families returns the parts of the types before the dot, in order.
func families() (out []string) {
	for _, t := range types {
		family, _, _ := strings.Cut(t, ".")
		if !slices.Contains(out, family) {
			out = append(out, family)
		}
	}
	return out
}

// firstUnknown returns the first type that no event has, and why: see unknownType.
func firstUnknown(all []string) (at int, why string) {
	for i, t := range all {
		if why := unknownType(t); why != "" {
			return i, why
		}
	}
	return 0, ""
}

// unknownType says why no event matches a type, with the nearest known one, or returns "". It is only for
// new filters: a stored one may be of a later version.
func unknownType(t string) string {
	if slices.ContainsFunc(types, func(known string) bool { return matchType(t, known) }) {
		return ""
	}
	family, _, _ := strings.Cut(t, ".")
	var own []string
	for _, known := range types {
		if strings.HasPrefix(known, family+".") {
			own = append(own, known)
		}
	}
	if near := suggest.Nearest(t, types); near != "" {
		return fmt.Sprintf("%q: no event has this type: do you mean %s?", t, near)
	}
	if len(own) > 0 {
		return fmt.Sprintf("%q: no event has this type: there are %s", t, suggest.List(own, 12))
	}
	if near := suggest.Nearest(family, families()); near != "" {
		return fmt.Sprintf("%q: no event has this type: do you mean %s.*?", t, near)
	}
	all := families()
	for i := range all {
		all[i] += ".*"
	}
	return fmt.Sprintf("%q: no event has this type: there are %s", t, suggest.List(all, len(all)))
}
