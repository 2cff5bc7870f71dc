//go:build integration

package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/rest"
)

// refusedHere are operations that never succeed in the federation of the test, with the reason.
var refusedHere = map[string]string{
	"Overrides.Set":            "only the region that runs the job takes it",
	"Regions.Rebind":           "only a regional server serves it",
	"Regions.Lose":             "every region is connected",
	"System.Recover":           "the store is not restored",
	"Members.RemoveServer":     "there is one server",
	"Keys.RotateAuthority":     "no phase follows from a generated text",
	"Keys.ChangeRing":          "no step follows from a generated text",
	"Auth.Login":               "there is no identity provider",
	"Auth.SetProvider":         "there is no identity provider",
	"Auth.RemoveProvider":      "there is no identity provider",
	"Regions.Failback":         "nothing failed over",
	"Rollouts.Promote":         "no rollout is in progress",
	"Rollouts.Pause":           "no rollout is in progress",
	"Rollouts.Resume":          "no rollout is in progress",
	"Rollouts.Fail":            "no rollout is in progress",
	"Spares.Get":               "no spare is held",
	"Spares.Release":           "no spare is held",
	"Spares.Cancel":            "no spare is held",
	"Spares.SetProvisioner":    "no secret follows from a generated text",
	"Spares.RemoveProvisioner": "there is no provisioner",
	"Members.UnbanRegion":      "no region is banned",
	"Members.Unregister":       "no node is registered",
	"Members.Register":         "the policy asks for no registration",
	"Topology.History":         "no series is old enough",
	"Members.BanRegion":        "the test keeps its regions",
	"Regions.Remove":           "the test keeps its regions",
	"Nodes.Remove":             "every node is ready",
	"Tokens.Revoke":            "the test keeps its token",
	"Auth.RevokeAccessToken":   "the test keeps its token",
}

// contractJob is the job that runs during the test.
const contractJob = `name: hello
groups:
  web:
    count: 1
    ports: {http: {}}
    services: {made-by-test: {port: http}}
    tasks:
      main:
        driver: process
        config: {command: /bin/sh, args: ["-c", "echo hello > $NUSA_TASK_DIR/hello; exec sleep 600"]}
        resources: {cpu: 50m, memory: 16MiB}
`

// timedJob and dispatchedJob are jobs that begin runs.
const (
	timedJob = `name: timed
schedule: {cron: ['0 0 29 2 *'], overlap: allow}
groups: {main: {tasks: {main: {driver: process, config: {command: /bin/true}}}}}
`
	dispatchedJob = `name: dispatched
parameterized: {meta_required: [who]}
groups: {main: {tasks: {main: {driver: process, config: {command: /bin/true}}}}}
`
	// gatedJob is a workflow whose runs wait for an approval.
	gatedJob = "name: gated\nworkflow: {steps: {gate: {approval: true}}}\n"
	// brokenJob leaves three dead letters.
	brokenJob = `name: broken
type: batch
groups:
  part:
    count: 3
    retry: {rules: [{action: fail}]}
    tasks: {main: {driver: process, config: {command: /bin/false}}}
`
)

// contract holds requests that are made from the OpenAPI document.
type contract struct {
	t      *testing.T
	base   string
	token  string
	doc    *openapi3.T
	client *http.Client
	// values are names of what exists, by the name of the parameter.
	values map[string]string
	// runs are runs of a workflow, or ids of dead letters, by the operation that needs one.
	runs map[string]string
	// got are the statuses of each operation. requests counts all.
	got      map[string]map[int]int
	requests int
	// unserved are the operations that the tier does not serve.
	unserved map[string]bool
}

// TestContract makes valid and invalid requests for each operation of the OpenAPI document, at a global
// server and at a regional one. No response is 5xx, and each one matches its schema.
func TestContract(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin, port := filepath.Join(root, "bin", "nusa"), freeport.Reserve(t, ports)
	env := startDev(t, bin, port, 2, "--agents", "1", "--regions", "southeastasia,westeurope")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env, cmd.Dir = env, root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("nusa %s: %v", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}
	for name, text := range map[string]string{"hello": contractJob, "timed": timedJob, "dispatched": dispatchedJob, "gated": gatedJob, "broken": brokenJob} {
		job := filepath.Join(t.TempDir(), name+".yaml")
		if err := os.WriteFile(job, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "broken" {
			run("job", "run", "--detach", job)
			continue
		}
		run("job", "run", "--timeout", "100s", job)
	}
	runs := map[string]string{}
	var letters []string
	for deadline := time.Now().Add(patience); len(letters) < 3; <-time.After(100 * time.Millisecond) {
		letters = strings.Fields(run("deadletter", "list", "-o", "name"))
		if time.Now().After(deadline) {
			t.Fatalf("%d dead letters", len(letters))
		}
	}
	runs["DeadLetters.Get"], runs["DeadLetters.Redrive"], runs["DeadLetters.Drop"] = letters[0], letters[1], letters[2]
	for _, op := range []string{"Get", "Graph", "Approve", "Retry", "Cancel"} {
		var r struct{ Name string }
		if err := json.Unmarshal([]byte(run("workflow", "run", "--detach", "-o", "json", "gated")), &r); err != nil {
			t.Fatal(err)
		}
		runs["Workflows."+op] = r.Name
	}
	run("workflow", "cancel", runs["Workflows.Retry"])
	var made struct{ Secret string }
	if err := json.Unmarshal([]byte(run("auth", "token", "create", "--role", "admin", "-o", "json")), &made); err != nil || made.Secret == "" {
		t.Fatalf("no token: %v", err)
	}
	served, unserved := map[string]bool{}, map[string]int{}
	for _, at := range []struct {
		tier string
		port int
	}{{"global", port + 1}, {"regional", port + 104}} {
		c := &contract{
			t: t, base: fmt.Sprintf("http://127.0.0.1:%d", at.port), token: made.Secret, runs: runs, got: map[string]map[int]int{}, unserved: map[string]bool{},
			client: &http.Client{Timeout: patience},
		}
		c.learn()
		for _, op := range inOrder() {
			c.exercise(op)
		}
		c.report(at.tier, served)
		for name := range c.unserved {
			unserved[name]++
		}
	}
	for _, op := range everything() {
		switch {
		case served[op.Name] || refusedHere[op.Name] != "":
		case unserved[op.Name] == 2:
			t.Logf("no tier serves %s", op.Name)
		default:
			t.Errorf("%s succeeds at no tier", op.Name)
		}
	}
}

// everything returns all operations of the document.
func everything() []rest.Operation { return append(rest.Operations(), rest.Virtflow()...) }

// inOrder returns the operations, those first that make objects, and those last that end them.
func inOrder() []rest.Operation {
	rank := func(op rest.Operation) int {
		switch {
		case strings.HasSuffix(op.Path, ":restart"):
			return 3
		case strings.HasSuffix(op.Path, ":stop"):
			return 4
		}
		return map[string]int{http.MethodPut: 0, http.MethodPost: 1, http.MethodGet: 2, http.MethodDelete: 5}[op.Verb]
	}
	out := everything()
	slices.SortStableFunc(out, func(a, b rest.Operation) int { return rank(a) - rank(b) })
	return out
}

// learn reads the document, and the names of what exists.
func (c *contract) learn() {
	c.t.Helper()
	loader := openapi3.NewLoader()
	_, body := c.do(http.MethodGet, "/openapi.json", nil, "")
	doc, err := loader.LoadFromData(body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.doc = doc
	c.values = map[string]string{
		"namespace": "default", "name": "hello", "from": "southeastasia", "to": "westeurope", "region": "southeastasia",
		"id": "x", "allocation": "x", "ring": "gossip", "domain": "api.example.com", "accessor": "aaaaaaaa", "kind": "edge",
	}
	for name, path := range map[string]string{"allocation": "/v1/allocations", "node": "/v1/nodes"} {
		_, body := c.do(http.MethodGet, path, nil, "")
		var fields map[string]json.RawMessage
		var list []struct{ ID string }
		if err := json.Unmarshal(body, &fields); err != nil || fields[name+"s"] != nil && json.Unmarshal(fields[name+"s"], &list) != nil {
			c.t.Fatalf("%s: %s", path, body)
		}
		if len(list) > 0 {
			c.values[name] = list[0].ID
		}
	}
}

// do makes a request with the token.
func (c *contract) do(verb, path string, body []byte, kind string, headers ...string) (*http.Response, []byte) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	streams := strings.Contains(path, ":watch") || strings.Contains(path, "follow=")
	if streams {
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	r, err := http.NewRequestWithContext(ctx, verb, c.base+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c.requests++
	resp, err := c.client.Do(r)
	if err != nil {
		c.t.Fatalf("%s %s: %v", verb, path, err)
	}
	defer resp.Body.Close()
	if streams {
		defer time.AfterFunc(300*time.Millisecond, cancel).Stop()
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil && !streams {
		c.t.Errorf("%s %s: %v", verb, path, err)
	}
	return resp, data
}

// exercise makes the requests of one operation.
func (c *contract) exercise(op rest.Operation) {
	spec := c.doc.Paths.Value(op.Template).GetOperation(op.Verb)
	path, bad := c.path(op, spec, c.values), c.path(op, spec, nil)
	kinds := []string{""}
	var bodies [][]byte
	if op.Body != "" {
		kinds = slices.Sorted(maps.Keys(spec.RequestBody.Value.Content))
		bodies = c.bodies(op, spec)
	}
	for _, query := range c.queries(spec) {
		for _, p := range []string{path, bad} {
			if op.Verb == http.MethodGet || p == bad && op.Body == "" {
				c.try(op, spec, p+query, nil, "")
			}
		}
	}
	for _, body := range bodies {
		for _, kind := range kinds {
			c.try(op, spec, path, body, kind)
		}
		c.try(op, spec, bad, body, kinds[0])
	}
	if op.Body != "" {
		c.try(op, spec, path, []byte(`{`), kinds[0])
		c.try(op, spec, path, []byte(`{"nosuchfield": 1}`), kinds[0])
		c.try(op, spec, path, []byte(`[]`), kinds[0])
		c.try(op, spec, path, []byte(`{}`), "text/plain")
		c.try(op, spec, path, bytes.Repeat([]byte(" "), 5<<20), kinds[0])
	}
	c.try(op, spec, path+"?nosuchparameter=1", nil, "")
	if op.Verb == http.MethodDelete && refusedHere[op.Name] == "" {
		c.try(op, spec, c.path(op, spec, removable), nil, "")
	}
}

// removable are the names of what the test made.
var removable = map[string]string{"namespace": "default", "name": "made-by-test", "domain": "made.example.com", "id": "x", "accessor": "x"}

// path fills the parameters of the path. Without values nothing exists under the path.
func (c *contract) path(op rest.Operation, spec *openapi3.Operation, values map[string]string) string {
	path := op.Template
	for _, p := range spec.Parameters {
		if p.Value.In != "path" {
			continue
		}
		value := "nosuch"
		switch {
		case op.Name == "Regions.Define" && values == nil:
			value = "No_Name" // a region that is defined exists
		case values != nil:
			value = c.named(op, p.Value.Name, values)
		}
		path = strings.ReplaceAll(path, "{"+p.Value.Name+"}", url.PathEscape(value))
	}
	return path
}

// named returns the name of an object of the kind of an operation.
func (c *contract) named(op rest.Operation, parameter string, values map[string]string) string {
	service, _, _ := strings.Cut(op.Name, ".")
	switch {
	case op.Name == "Schedules.Dispatch" && parameter == "name":
		return "dispatched"
	case service == "Schedules" && parameter == "name":
		return "timed"
	case op.Name == "Workflows.Run" && parameter == "name":
		return "gated"
	case service == "Workflows" && parameter == "name":
		return c.runs[op.Name]
	case service == "DeadLetters" && parameter == "id":
		return c.runs[op.Name]
	case service == "Pools" && parameter == "region":
		return "southeastasia"
	case service == "Pools":
		return "default" // it has nodes
	case parameter == "name" && (op.Name == "Regions.Define" || strings.HasPrefix(op.Template, "/v1/regions/")):
		return "southeastasia"
	case (parameter == "name" || strings.HasSuffix(parameter, ".name")) && service != "Jobs" && service != "Rollouts" && service != "Overrides":
		return "made-by-test"
	case parameter == "id" && (service == "Allocations" || service == "Tasks") && c.values["allocation"] != "":
		return c.values["allocation"]
	case parameter == "id" && service == "Nodes" && c.values["node"] != "":
		return c.values["node"]
	case parameter == "id" && service == "Reservations" && c.values["reservation"] != "":
		return c.values["reservation"]
	case parameter == "id" && service == "Spares" && c.values["spare"] != "":
		return c.values["spare"]
	case parameter == "domain" && service == "Origins":
		return "made.example.com"
	case parameter == "task_id":
		return c.reserve()
	}
	return values[parameter]
}

// usual are queries that operations need, by the id of the operation.
var usual = map[string]string{
	"Auth_CanI": "?verb=read&kind=job", "Topology_Path": "?from=southeastasia&to=westeurope", "Origins_Resolve": "?region=southeastasia",
	"Allocations_ReadFile": "?path=tasks/main/hello",
	"Topology_History":     "?kind=edge&region=southeastasia&key=westeurope",
	"Rollouts_Diff":        "?from=1&to=1",
}

// queries returns queries: none, one with each parameter, and one with a wrong value for each.
func (c *contract) queries(spec *openapi3.Operation) []string {
	out := []string{""}
	if query := usual[spec.OperationID]; query != "" {
		out = append(out, query)
	}
	for _, p := range spec.Parameters {
		if p.Value.In != "query" {
			continue
		}
		name := url.QueryEscape(p.Value.Name)
		schema := p.Value.Schema.Value
		value := c.values[p.Value.Name]
		switch {
		case value != "":
		case len(schema.Enum) > 0:
			value = fmt.Sprint(schema.Enum[len(schema.Enum)-1])
		case schema.Type == nil, schema.Type.Is("integer"), schema.Type.Is("number"):
			value = "1"
		case schema.Type.Is("boolean"):
			value = "true"
		case schema.Format == "int64" || schema.Format == "uint64":
			value = "1"
		case schema.Format == "date-time":
			value = "2026-01-02T03:04:05Z"
		default:
			value = "1s"
		}
		if len(out) > 2 && spec.Responses.Status(http.StatusOK).Value.Content.Get("text/event-stream") != nil {
			break // a stream takes its time
		}
		out = append(out, "?"+name+"="+url.QueryEscape(value), "?"+name+"=%00%ff", "?"+name+"=-99999999999999999999", "?"+name+"=a&"+name+"=b")
	}
	return out
}

// bodies returns bodies for an operation: from its schema, and those that the test knows to be valid.
func (c *contract) bodies(op rest.Operation, spec *openapi3.Operation) [][]byte {
	out := [][]byte{[]byte(`{}`)}
	if valid := c.valid(op); valid != "" {
		out = append(out, []byte(valid))
	}
	for kind, media := range spec.RequestBody.Value.Content {
		if strings.Contains(kind, "yaml") {
			continue
		}
		for seed := range 4 {
			data, err := json.Marshal(generate(media.Schema.Value, seed, 3))
			if err != nil {
				c.t.Fatal(err)
			}
			if op.Duplex {
				data = append(append(data, '\n'), "{bad\n"...)
			}
			out = append(out, data)
		}
	}
	return out
}

// generate returns a value of a schema. Seeds 0 and 1 give small values, 2 and 3 wrong ones.
func generate(s *openapi3.Schema, seed, depth int) any {
	switch {
	case len(s.AnyOf) > 0:
		return generate(s.AnyOf[0].Value, seed, depth)
	case len(s.Enum) > 0:
		return s.Enum[(seed+1)%len(s.Enum)]
	case s.Type == nil && len(s.OneOf) > 0:
		return generate(s.OneOf[0].Value, seed, depth)
	case s.Type.Is("object"):
		out := map[string]any{}
		for name, p := range s.Properties {
			if depth > 0 && len(name)%2 != seed%2 || seed > 1 {
				if depth > 0 {
					out[name] = generate(p.Value, seed, depth-1)
				}
			}
		}
		if s.AdditionalProperties.Schema != nil && depth > 0 {
			out["x"] = generate(s.AdditionalProperties.Schema.Value, seed, depth-1)
		}
		return out
	case s.Type.Is("array"):
		if depth == 0 {
			return []any{}
		}
		return []any{generate(s.Items.Value, seed, depth-1)}
	case s.Type.Is("boolean"):
		return seed%2 == 0
	case s.Type.Is("integer"), s.Type.Is("number"):
		return []any{1, 0, -1, 99999999999}[seed]
	case s.Format == "int64", s.Format == "uint64":
		return []any{"1", "0", "-1", "x"}[seed]
	case s.Format == "byte":
		return []any{"eA==", "", "eA==", "not base64!"}[seed]
	case s.Format == "date-time":
		return []any{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z", "yesterday"}[seed]
	}
	return []any{"1s", "", strings.Repeat("x", 5000), "\u0000\"'<>$(id)"}[seed]
}

// try makes a request and checks the response.
func (c *contract) try(op rest.Operation, spec *openapi3.Operation, path string, body []byte, kind string) {
	c.t.Helper()
	resp, data := c.do(op.Verb, path, body, kind)
	if c.got[op.Name] == nil {
		c.got[op.Name] = map[int]int{}
	}
	c.got[op.Name][resp.StatusCode]++
	fail := func(format string, args ...any) {
		c.t.Helper()
		c.t.Errorf("%s %s with %.300q as %q: %d: %s: %.600s", op.Verb, path, body, kind, resp.StatusCode, fmt.Sprintf(format, args...), data)
	}
	if resp.StatusCode == http.StatusNotFound && bytes.Contains(data, []byte(`"code":"UNIMPLEMENTED"`)) {
		c.unserved[op.Name] = true
	}
	if resp.StatusCode >= 500 {
		fail("no request may cause this")
	}
	c.made(op, resp.StatusCode, data)
	answer := spec.Responses.Status(resp.StatusCode)
	if answer == nil {
		answer = spec.Responses.Default()
	}
	given, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	media := answer.Value.Content.Get(given)
	if media == nil {
		fail("the document has no content type %q", given)
		return
	}
	docs := [][]byte{data}
	if op.Streams && resp.StatusCode == http.StatusOK {
		docs = bytes.Split(data, []byte("\n"))
		if !bytes.HasSuffix(data, []byte("\n")) {
			docs = docs[:len(docs)-1] // the test has ended the stream within a line
		}
	}
	for _, one := range docs {
		if len(bytes.TrimSpace(one)) == 0 && op.Streams {
			continue
		}
		var value any
		if err := json.Unmarshal(one, &value); err != nil {
			fail("%v", err)
			return
		}
		if err := media.Schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020()); err != nil {
			fail("%v", err)
			return
		}
	}
}

// report prints what was exercised at a tier, and notes what succeeded.
func (c *contract) report(tier string, served map[string]bool) {
	var out strings.Builder
	for _, op := range everything() {
		got := c.got[op.Name]
		if len(got) == 0 {
			c.t.Errorf("%s was not exercised at the %s tier", op.Name, tier)
		}
		served[op.Name] = served[op.Name] || got[http.StatusOK] > 0
	}
	for _, name := range slices.Sorted(maps.Keys(c.got)) {
		fmt.Fprintf(&out, "%-28s", name)
		for _, status := range slices.Sorted(maps.Keys(c.got[name])) {
			fmt.Fprintf(&out, " %d×%d", c.got[name][status], status)
		}
		out.WriteByte('\n')
	}
	c.t.Logf("the %s tier: %d requests for %d operations\n%s", tier, c.requests, len(everything()), out.String())
}
