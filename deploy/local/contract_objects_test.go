//go:build integration

package local_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/rest"
)

// valid returns a body that the operation accepts, if the test knows one.
func (c *contract) valid(op rest.Operation) string {
	const spec = `{"name": "made-by-test", "groups": {"g": {"count": 1, "tasks": {"t": {"driver": "process", "config": {"command": "/bin/sleep", "args": ["600"]}}}}}}`
	switch op.Name {
	case "Jobs.Submit", "Jobs.Plan":
		if op.Verb == http.MethodPut {
			return `{"name": "hello", "groups": {"web": {"count": 1, "ports": {"http": {}}, "services": {"made-by-test": {"port": "http"}}, "tasks": {"main": {"driver": "process", "config": {"command": "/bin/sh", "args": ["-c", "echo hello > $NUSA_TASK_DIR/hello; exec sleep 600"]}, "resources": {"cpu": "50m", "memory": "16MiB"}}}}}}`
		}
		return spec
	case "Jobs.SubmitMany":
		return `{"spec": ` + spec + `}` + "\n"
	case "Allocations.Exec":
		return `{"start": {"allocation": "` + c.values["allocation"] + `", "command": ["/bin/true"]}}` + "\n"
	case "Allocations.Signal":
		return `{"signal": "SIGCONT"}`
	case "Regions.Define":
		return `{"location": {"latitude": 1.283, "longitude": 103.833}, "labels": {"continent": "asia", "country": "sg", "geography": "asia-pacific", "jurisdiction": "sg", "provider": "azure"}, "name": "southeastasia"}`
	case "Origins.Set":
		return `{"domain": "made.example.com", "origins": [{"region": "southeastasia", "address": "10.0.0.1:80"}]}`
	case "Auth.SetRole":
		return `{"rules": [{"verbs": ["read"], "kinds": ["job"]}]}`
	case "Auth.SetBinding":
		return `{"role": "viewer", "subjects": ["operator/x"]}`
	case "Auth.CreateAccessToken":
		return `{"roles": ["viewer"], "ttl": "3600s"}`
	case "Tokens.Create":
		return `{"role": "agent", "region": "southeastasia"}`
	case "Members.Ban", "Members.Unban":
		return `{"role": "agent", "region": "southeastasia", "name": "nobody"}`
	case "Members.SetPolicy":
		return `{"region": "southeastasia", "policy": "token"}`
	case "Intakes.Set":
		return `{"intake": {"name": "made-by-test", "broker": {"urls": ["amqps://bus.invalid"], "user": "nusa"}}, "secrets": {"password": "x"}}`
	case "Intakes.Disable", "Intakes.Enable":
		return `{}`
	case "Webhooks.Set":
		return `{"webhook": {"name": "made-by-test", "url": "https://hooks.invalid/", "types": ["job.submitted"]}}`
	case "Webhooks.Rotate", "Webhooks.Test", "Webhooks.Disable", "Webhooks.Enable":
		return `{}`
	case "Webhooks.Replay":
		return `{"from": "1"}`
	case "Reservations.Create":
		return `{"cpuMilli": "10", "memoryBytes": "1048576"}`
	case "Reservations.Claim":
		return `{"by": "test", "text": "a virtual machine"}`
	case "Buses.Set":
		return `{"bus": {"name": "made-by-test", "broker": {"urls": ["tls://broker.invalid:4222"]}, "types": ["job.submitted"]}}`
	case "Buses.Disable", "Buses.Enable", "Buses.Test":
		return `{}`
	case "Rollouts.Revert":
		return `{"to": "1"}`
	case "Rollouts.Tag":
		return `{"version": "1", "tag": "made-by-test"}`
	case "Spares.Prepare":
		return `{"count": 1, "cpuMilli": "10", "memoryBytes": "1048576"}`
	case "Spares.Cancel", "Spares.Release":
		return `{}`
	case "Spares.SetProvisioner":
		return `{"provisioner": {"name": "made-by-test", "webhook": {"url": "https://provision.invalid/"}}, "secret": "whsec_` + strings.Repeat("A", 40) + `"}`
	case "DeadLetters.Redrive":
		return `{}`
	case "Schedules.Pause", "Schedules.Resume", "Schedules.Trigger":
		return `{}`
	case "Schedules.Backfill":
		return `{"from": "2020-02-28T00:00:00Z", "to": "2020-03-02T00:00:00Z"}`
	case "Schedules.Dispatch":
		return `{"payload": "aGVsbG8=", "meta": {"who": "jane"}}`
	case "Workflows.Run", "Workflows.Cancel":
		return `{}`
	case "Workflows.Approve":
		return `{"step": "gate"}`
	case "Workflows.Retry":
		return `{"from": "gate"}`
	case "Overrides.Clear":
		return `{"region": "southeastasia"}`
	case "Semaphores.Set":
		return `{"units": 2}`
	case "Pools.Set":
		return `{"pool": {"weights": {"cpu": 60, "quota": 20}}}`
	case "Virtflow.Schedule":
		return `{"requested_cpu": 0.001, "requested_memory": 1}`
	case "Namespaces.Set":
		return `{"description": "made by a test"}`
	}
	return ""
}

// made notes the id of an object that the test has made, and waits until the object can be used.
func (c *contract) made(op rest.Operation, status int, body []byte) {
	c.t.Helper()
	var made struct{ ID, State string }
	kind := map[string]string{"Reservations.Create": "reservation", "Spares.Prepare": "spare"}[op.Name]
	if kind == "" || status != http.StatusOK || c.values[kind] != "" {
		return
	}
	if err := json.Unmarshal(body, &made); err != nil || made.ID == "" {
		c.t.Fatalf("a %s without an id: %s", kind, body)
	}
	c.values[kind] = made.ID
	if kind == "spare" {
		return // it can be read and cancelled in every state
	}
	for deadline := time.Now().Add(patience); made.State != "RESERVATION_STATE_COMPLETED"; <-time.After(50 * time.Millisecond) {
		_, body := c.do(http.MethodGet, "/v1/reservations/"+made.ID, nil, "")
		if err := json.Unmarshal(body, &made); err != nil || time.Now().After(deadline) {
			c.t.Fatalf("the reservation is not completed: %v: %s", err, body)
		}
	}
}

// reserve makes a reservation for each test that reads or ends one.
func (c *contract) reserve() string {
	_, body := c.do(http.MethodPost, "/schedule", []byte(c.valid(rest.Operation{Name: "Virtflow.Schedule"})), "application/json")
	var made struct {
		ID string `json:"task_id"`
	}
	if err := json.Unmarshal(body, &made); err != nil || made.ID == "" {
		return "x" // no region serves the path
	}
	return made.ID
}
