package job

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// forms holds an example for each mapping and list of a job file. The key is the name of
// the message, or for maps and lists the name of the field. A test parses each example and
// checks that none is missing.
var forms = map[protoreflect.FullName]string{
	"nusa.v1.JobSpec":        "{name: api, groups: {web: {tasks: {main: {driver: process, config: {command: sleep}}}}}}",
	"nusa.v1.JobSpec.groups": "{web: {count: 2, tasks: {main: {driver: process, config: {command: sleep}}}}}",
	"nusa.v1.JobSpec.labels": "{team: blue}", "nusa.v1.JobSpec.colocate": "[[web, cache]]",
	"nusa.v1.Colocation": "[web, cache]",

	"nusa.v1.Schedule": "{cron: ['30 2 * * mon-fri'], time_zone: Europe/Berlin}", "nusa.v1.Schedule.cron": "['30 2 * * mon-fri']",
	"nusa.v1.Schedule.calendars": "[{at: ['09:00'], days: '-1'}]", "nusa.v1.Calendar": "{at: ['09:00'], days: '-1'}", "nusa.v1.Calendar.at": "['09:00', '17:30']",
	"nusa.v1.Schedule.exclude": "[{from: '2026-12-24', to: '2027-01-01'}]", "nusa.v1.Exclusion": "{from: '2026-12-24', to: '2027-01-01'}",
	"nusa.v1.RunHistory": "{count: 20, age: 168h}", "nusa.v1.Parameterized": "{payload: required, meta_required: [customer]}",
	"nusa.v1.Parameterized.meta_required": "[customer]", "nusa.v1.Parameterized.meta_optional": "[priority]",
	"nusa.v1.Workflow":       "{steps: {fetch: {ref: download}, train: {depends: fetch.succeeded, ref: train}}}",
	"nusa.v1.Workflow.steps": "{fetch: {ref: download}}", "nusa.v1.Step": "{depends: fetch.succeeded, ref: train}",
	"nusa.v1.Workflow.outputs":    "{model: '${steps.train.output}'}",
	"nusa.v1.Workflow.parameters": "{day: {default: today}}", "nusa.v1.WorkflowParameter": "{default: today}",
	"nusa.v1.Step.groups": "{main: {tasks: {main: {driver: process, config: {command: sleep}}}}}", "nusa.v1.Step.meta": "{size: large}",
	"nusa.v1.StepRetry": "{limit: 3, backoff: 10s, on: [lost]}", "nusa.v1.StepRetry.on": "[failed, lost]",
	"nusa.v1.Step.semaphores": "[{name: licenses, units: 2}]", "nusa.v1.StepSemaphore": "{name: licenses, units: 2}", "nusa.v1.StepData": "{from: fetch, size: 50GiB}",
	"nusa.v1.Foreach": "{items: [eu, us], max_parallel: 2}", "nusa.v1.Foreach.items": "[eu, us]",

	"nusa.v1.RegionsSpec":       "{allow: [{name: japaneast}], spread: {max: 2}}",
	"nusa.v1.RegionsSpec.allow": "[{name: japaneast}, {labels: {jurisdiction: eu}}]", "nusa.v1.RegionSelector": "{name: japaneast}",
	"nusa.v1.RegionSelector.labels": "{jurisdiction: eu}",
	"nusa.v1.RegionsSpec.prefer":    "[{name: japaneast, weight: 20}]", "nusa.v1.Preference": "{name: japaneast, weight: 20}",
	"nusa.v1.RegionsSpec.near": "[{region: japaneast, max_rtt: 40ms}]", "nusa.v1.Near": "{region: japaneast, max_rtt: 40ms}",
	"nusa.v1.Location": "{latitude: -6.2, longitude: 106.8}", "nusa.v1.RegionSpread": "{min: 2, max: 3}",

	"nusa.v1.Group":             "{count: 2, tasks: {main: {driver: process, config: {command: sleep}}}}",
	"nusa.v1.Group.constraints": "['node.cpu_cores >= 4']", "nusa.v1.NodeSpread": `{by: 'node.labels["rack"]'}`,
	"nusa.v1.Group.affinities": `[{expression: 'node.pool == "fast"', weight: 20}]`, "nusa.v1.Affinity": `{expression: 'node.pool == "fast"', weight: 20}`,
	"nusa.v1.Group.apart": "[db]", "nusa.v1.Disconnect": "{node: {after: 30s, running: keep, replace: true}}", "nusa.v1.DisconnectLevel": "{after: 30s, running: keep, replace: true}",
	"nusa.v1.Failback":    "{mode: auto, after: 10m}",
	"nusa.v1.Group.ports": "{http: {to: 8080}}", "nusa.v1.Port": "{to: 8080}",
	"nusa.v1.Group.services": "{web: {port: http}}", "nusa.v1.GroupService": "{port: http, tags: [blue]}",
	"nusa.v1.GroupService.tags": "[blue, v2]", "nusa.v1.GroupService.checks": "[server]",
	"nusa.v1.Group.volumes": "{data: {source: /srv/data}}", "nusa.v1.Volume": "{source: /srv/data}",
	"nusa.v1.Reschedule": "{attempts: 5}", "nusa.v1.Retry": "{attempts: 5, rules: [{exit_codes: [2], action: fail}]}",
	"nusa.v1.Retry.rules": "[{exit_codes: [2], action: fail}]", "nusa.v1.RetryRule": "{exit_codes: [2], action: fail}", "nusa.v1.RetryMemory": "{factor: 1.5, limit: 4GiB}",
	"nusa.v1.RetryRule.exit_codes": "[2]", "nusa.v1.RetryRule.signals": "[SIGSEGV]", "nusa.v1.RetryRule.categories": "[oom]",
	"nusa.v1.Backoff": "{from: 5s, to: 10m}", "nusa.v1.Update": "{max_parallel: 2}",
	"nusa.v1.UpdateRegions": "{order: [japaneast], pause_between: 10m}", "nusa.v1.UpdateRegions.order": "[japaneast, westeurope]",

	"nusa.v1.Group.tasks": "{main: {driver: process, config: {command: sleep}}}", "nusa.v1.Task": "{driver: process, config: {command: sleep}}",
	"nusa.v1.Resources": "{cpu: 500m, memory: 256MiB}", "nusa.v1.GPU": "{count: 1}", "nusa.v1.GPU.models": "[a100]",
	"nusa.v1.Task.env":       "{GREETING: hello}",
	"nusa.v1.Task.artifacts": "[{source: https://example.com/tool, to: bin/tool}]", "nusa.v1.Artifact": "{source: https://example.com/tool, to: bin/tool}",
	"nusa.v1.Task.templates": "[{text: hello, to: local/app.conf}]", "nusa.v1.Template": "{text: hello, to: local/app.conf}",
	"nusa.v1.Task.secrets": "[db-password]",
	"nusa.v1.Check":        "{http: {port: http, path: /}, interval: 10s}", "nusa.v1.HTTPCheck": "{port: http, path: /}", "nusa.v1.TCPCheck": "{port: http}",
	"nusa.v1.CommandCheck": "[test, -e, ready]", "nusa.v1.CommandCheck.command": "[test, -e, ready]",
	"nusa.v1.Logs": "{files: 3, size: 10MiB}", "nusa.v1.Restart": "{attempts: 3, window: 10m}",
	"nusa.v1.Lifecycle": "{hook: prestart, sidecar: true}",
	structName:          "{command: sleep}",
}

// form returns " such as EXAMPLE" for an error about the form of a value, or "" if there
// is no example.
func form(name protoreflect.FullName) string {
	if f := forms[name]; f != "" {
		return " such as " + f
	}
	return ""
}

// wordings maps fields of other schedulers' files to a hint what to write instead.
var wordings = map[string]string{
	"anti_affinity":     `apart: [db] keeps instances with the tag db, of any job, on different nodes; spread: {by: 'node.labels["rack"]'} spreads a group's instances as far as possible`,
	"node_selector":     `constraints: ['node.labels["disk"] == "ssd"'] chooses nodes`,
	"datacenters":       "regions: {allow: [{name: japaneast}]} chooses regions",
	"region":            "regions: {allow: [{name: japaneast}]} chooses regions",
	"replicas":          "count, of a group, says how many",
	"instances":         "count, of a group, says how many",
	"image":             "config: {image: …}, of a task, has the settings of its driver",
	"command":           "config: {command: …}, of a task, has the settings of its driver",
	"args":              "config: {args: […]}, of a task, has the settings of its driver",
	"environment":       "env, of a task, has the variables",
	"health_check":      "check, of a task, says when it is healthy",
	"healthcheck":       "check, of a task, says when it is healthy",
	"liveness_probe":    "check, of a task, says when it is healthy",
	"readiness_probe":   "check, of a task, says when it is healthy",
	"limits":            "resources: {cpu: 500m, memory: 256MiB} is both what is reserved for a task and its limit",
	"requests":          "resources: {cpu: 500m, memory: 256MiB} is both what is reserved for a task and its limit",
	"containers":        "tasks, of a group, lists them by name",
	"restart_policy":    "restart, of a task, and reschedule or retry, of a group, set it",
	"backoff_limit":     "restart, of a task, and reschedule or retry, of a group, set it",
	"periodic":          "schedule: {cron: ['30 2 * * *']}, of the job, runs it at set times",
	"cron":              "schedule: {cron: ['30 2 * * *']}, of the job, runs it at set times",
	"depends_on":        "jobs that wait for other jobs are not supported yet",
	"termination_grace": "kill_timeout, of a task, sets it",
	"stop_grace_period": "kill_timeout, of a task, sets it",
	"stop_signal":       "kill_signal, of a task, sets it",
	"init_containers":   "lifecycle: {hook: prestart}, of a task, runs it before the others",
}

// wording returns a hint for an unknown field: what to write instead if another scheduler
// has such a field, or where the field belongs in the file. Otherwise it returns "".
func wording(key string) string {
	// Convert camel case and hyphens: nodeSelector and node-selector become node_selector.
	var b strings.Builder
	for i, r := range key {
		switch {
		case r == '-':
			r = '_'
		case r >= 'A' && r <= 'Z':
			if r += 'a' - 'A'; i > 0 {
				b.WriteByte('_')
			}
		}
		b.WriteRune(r)
	}
	if text := wordings[b.String()]; text != "" {
		return text
	}
	var at []string
	for _, p := range paths((&nusav1.JobSpec{}).ProtoReflect().Descriptor(), "", nil) {
		if parent, name, found := cutLast(p); name == key {
			if !found {
				parent = "the job itself"
			}
			at = append(at, parent)
		}
	}
	// `regions` of a group has the same fields as `regions` of the job, and a step those of a job: they are left out.
	// A hint with more than two places would not help the author.
	at = slices.DeleteFunc(at, func(p string) bool {
		return strings.HasPrefix(p, "groups.NAME.regions") || strings.HasPrefix(p, "workflow.steps.NAME.groups") || strings.HasPrefix(p, "workflow.steps.NAME.regions")
	})
	if len(at) == 0 || len(at) > 2 {
		return ""
	}
	return "it is a field of " + strings.Join(at, " and of ")
}

func cutLast(path string) (parent, name string, found bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// nodeFailback is a field that Validate refuses, although the message has it. Both levels
// of `disconnect` are of the same message, but only the level `region` can have a
// failback.
const nodeFailback = "groups.NAME.disconnect.node.failback"

// paths returns the paths of all fields that a message has in a job file, in the order of
// the file. NAME stands for the keys of a map, and [] for the items of a list. The fields
// of messages in above are left out, so that recursion ends.
func paths(md protoreflect.MessageDescriptor, below string, above []protoreflect.FullName) []string {
	var out []string
	if slices.Contains(above, md.FullName()) {
		return nil
	}
	above = append(slices.Clone(above), md.FullName())
	for _, c := range columns(md) {
		at := c.name
		if below != "" {
			at = below + "." + c.name
		}
		if at == nodeFailback {
			continue
		}
		out = append(out, at)
		value, under := c.fd, at
		switch {
		case c.fd.IsMap():
			value, under = c.fd.MapValue(), at+".NAME"
		case c.fd.IsList():
			under = at + "[]"
		}
		inner := value.Message()
		if inner == nil || inner.FullName() == durationName || inner.FullName() == structName {
			continue
		}
		if _, list := lists[inner.FullName()]; !list {
			out = append(out, paths(inner, under, above)...)
		}
	}
	return out
}
