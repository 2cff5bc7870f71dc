package rest_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/rest"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fake is a server without identities, with scripted services.
type fake struct {
	submitted atomic.Pointer[nusav1.SubmitRequest]
	watched   atomic.Pointer[nusav1.WatchEventsRequest]
	// ended counts the streams that have ended.
	ended atomic.Int32
	token atomic.Pointer[string]
}

type (
	fakeJobs struct {
		nusav1.UnimplementedJobsServer
		*fake
	}
	fakeEvents struct {
		nusav1.UnimplementedEventsServer
		*fake
	}
	fakeAllocations struct {
		nusav1.UnimplementedAllocationsServer
		*fake
	}
)

// Submit implements nusav1.JobsServer.
func (f fakeJobs) Submit(_ context.Context, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	f.submitted.Store(r)
	switch r.GetCheckRevision() {
	case 5:
		return nil, status.Error(codes.Aborted, "the job is at revision 6")
	case 7:
		return nil, rpcerr.Error{Code: codes.ResourceExhausted, Message: "full", RetryAfter: 1500 * time.Millisecond}.Err()
	}
	return &nusav1.SubmitResponse{Version: 1, Revision: 42}, nil
}

// List implements nusav1.JobsServer.
func (f fakeJobs) List(_ context.Context, r *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	out := &nusav1.ListJobsResponse{}
	for i := range r.GetLimit() {
		out.Jobs = append(out.Jobs, &nusav1.Job{Spec: &nusav1.JobSpec{Name: fmt.Sprint("job-", i)}})
	}
	if r.GetPageToken() == "" {
		out.NextPageToken = "a&b"
	}
	return out, nil
}

// SubmitMany implements nusav1.JobsServer.
func (f fakeJobs) SubmitMany(s grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&nusav1.SubmitManyResponse{Error: r.GetSpec().GetName()}); err != nil {
			return err
		}
	}
}

// Watch implements nusav1.EventsServer. The region of the request chooses what happens.
func (f fakeEvents) Watch(r *nusav1.WatchEventsRequest, s grpc.ServerStreamingServer[nusav1.Event]) error {
	defer f.ended.Add(1)
	f.watched.Store(r)
	switch r.GetRegion() {
	case "denied":
		return status.Error(codes.PermissionDenied, "no")
	case "quiet":
	case "flood":
		for {
			if err := s.Send(&nusav1.Event{Message: strings.Repeat("x", 100_000)}); err != nil {
				return err
			}
		}
	default:
		if err := s.Send(&nusav1.Event{Token: "t1", Type: "job.submitted"}); err != nil {
			return err
		}
		if r.GetRegion() == "breaks" {
			return rpcerr.Error{Code: codes.Unavailable, Reason: rpcerr.ReasonNoMaster, Message: "no master"}.Err()
		}
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// Exec implements nusav1.AllocationsServer: it returns the input.
func (f fakeAllocations) Exec(s grpc.BidiStreamingServer[nusav1.ExecRequest, nusav1.ExecResponse]) error {
	defer f.ended.Add(1)
	token := strings.Join(metadata.ValueFromIncomingContext(s.Context(), "authorization"), ",")
	f.token.Store(&token)
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) || r.GetStdinClose() {
			return s.Send(&nusav1.ExecResponse{Exited: true, ExitCode: 3})
		}
		if err != nil {
			return err
		}
		if len(r.GetStdin()) > 0 {
			if err := s.Send(&nusav1.ExecResponse{Stdout: r.GetStdin()}); err != nil {
				return err
			}
		}
	}
}

// newFake starts a server, and returns its address.
func newFake(t *testing.T, o rest.Options) (*fake, string) {
	t.Helper()
	f := &fake{}
	s, err := serve.Open(t.Context(), serve.Options{Net: network.Host(), HTTPAddr: "127.0.0.1:0", Grace: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	nusav1.RegisterJobsServer(s, fakeJobs{fake: f})
	nusav1.RegisterEventsServer(s, fakeEvents{fake: f})
	nusav1.RegisterAllocationsServer(s, fakeAllocations{fake: f})
	o.Plain = true
	if err := rest.Mount(s, o); err != nil {
		t.Fatal(err)
	}
	start(t, s)
	return f, "http://" + s.HTTPAddr()
}

// answer is a response with its body.
type answer struct {
	*http.Response
	body string
}

// send makes a request with headers of the form "Name: value".
func send(t *testing.T, verb, url, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), verb, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, url, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, url, err)
	}
	return answer{resp, string(data)}
}

const (
	jsonHeader = "Content-Type: application/json"
	jobJSON    = `{"name": "a", "groups": {"g": {"count": 1, "tasks": {"t": {"driver": "process", "config": {"command": "/bin/true"}, "resources": {"cpu": "500m"}}}}}}`
	jobYAML    = "name: a\ngroups:\n  g:\n    count: 1\n    tasks:\n      t: {driver: process, config: {command: /bin/true}}\n"
)

// TestRequests: what a client sends wrong is refused and named.
func TestRequests(t *testing.T) {
	f, url := newFake(t, rest.Options{})
	big := `{"name": "` + strings.Repeat("x", 1<<20) + `"}`
	for name, c := range map[string]struct {
		verb, path, body string
		headers          []string
		status           int
		want             string // in the body
	}{
		"a job file":             {"POST", "/v1/jobs", jobYAML, []string{"Content-Type: application/yaml"}, 200, `"revision":"42"`},
		"a job file in JSON":     {"POST", "/v1/jobs", jobJSON, []string{"Content-Type: application/json; charset=utf-8"}, 200, `"42"`},
		"a spec":                 {"POST", "/v1/jobs", strings.Replace(jobJSON, `"cpu": "500m"`, `"cpuMilli": "500"`, 1), []string{jsonHeader}, 200, `"42"`},
		"a name in the path":     {"PUT", "/v1/jobs/default/b", jobYAML, []string{"Content-Type: application/yaml"}, 400, `the path says \"b\"`},
		"an unknown field":       {"POST", "/v1/jobs", "{\n\"name\": \"a\",\n\"gruops\": {}}", []string{jsonHeader}, 400, `"line":3`},
		"the nearest field":      {"POST", "/v1/jobs/default/a:explain", "{\n\"regoin\": \"x\"}", []string{jsonHeader}, 400, `do you mean region?`},
		"the line of a field":    {"POST", "/v1/jobs/default/a:explain", "{\n\"regoin\": \"x\"}", []string{jsonHeader}, 400, `"line":2`},
		"a bad number":           {"POST", "/v1/jobs/default/a:explain", "{\"spec\": {\n\"priority\": \"many\"}}", []string{jsonHeader}, 400, `"line":2`},
		"malformed JSON":         {"POST", "/v1/jobs", "{\n\"a\":", []string{jsonHeader}, 400, `"line":2`},
		"malformed YAML":         {"POST", "/v1/jobs", "a: [", []string{"Content-Type: application/yaml"}, 400, `"line":1`},
		"no body":                {"POST", "/v1/jobs", "", []string{jsonHeader}, 400, `the body is empty`},
		"a wrong type":           {"POST", "/v1/jobs", jobJSON, []string{"Content-Type: text/plain"}, 415, `application/yaml`},
		"no type":                {"POST", "/v1/jobs", jobJSON, nil, 415, `Content-Type is none`},
		"YAML where none is":     {"POST", "/v1/jobs/default/a:explain", "a: 1", []string{"Content-Type: application/yaml"}, 415, `application/json`},
		"a large job":            {"POST", "/v1/jobs", big, []string{jsonHeader}, 413, `1048576`},
		"a body of a GET":        {"GET", "/v1/jobs", "x", nil, 400, `takes no body`},
		"an unknown parameter":   {"GET", "/v1/jobs?limt=1", "", nil, 400, `do you mean limit?`},
		"a bad parameter":        {"GET", "/v1/jobs?limit=many", "", nil, 400, `many`},
		"a number too large":     {"GET", "/v1/jobs?limit=999999999999", "", nil, 400, `"field":"limit","message":"\"999999999999\" is wrong: it must be a whole number, -2147483648..2147483647"`},
		"a span without a unit":  {"GET", "/v1/events:watch?since=60", "", nil, 400, `it must be a number of seconds such as 90s`},
		"a parameter twice":      {"GET", "/v1/jobs?limit=1&limit=2", "", nil, 400, `is given 2 times`},
		"an unknown enumeration": {"GET", "/v1/overview:watch?jobs.states=nope", "", nil, 400, `it must be one of JOB_STATE_PENDING`},
		"a wrong enumeration":    {"GET", "/v1/overview:watch?jobs.states=RUNING", "", nil, 400, `do you mean JOB_STATE_RUNNING?`},
		"a HEAD of a stream":     {"HEAD", "/v1/events:watch", "", nil, 405, ``},
		"a HEAD of a list":       {"HEAD", "/v1/jobs?limit=1", "", nil, 200, ``},
		"an unknown path":        {"GET", "/v1/nothing", "", nil, 404, `/openapi.json`},
		"a wrong verb":           {"DELETE", "/v1/jobs", "", nil, 405, `GET, POST`},
		"an unserved call":       {"GET", "/v1/nodes", "", nil, 404, `UNIMPLEMENTED`},
		"a stale ETag":           {"POST", "/v1/jobs", jobJSON, []string{jsonHeader, `If-Match: "5"`}, 412, `revision 6`},
		"a bad ETag":             {"POST", "/v1/jobs", jobJSON, []string{jsonHeader, `If-Match: W/"x"`}, 400, `If-Match`},
		"an ETag of nothing":     {"POST", "/v1/jobs/default/a:override", `{"region": "x"}`, []string{jsonHeader, `If-Match: "5"`}, 400, `does not check`},
		"a full server":          {"POST", "/v1/jobs", jobJSON, []string{jsonHeader, `If-Match: "7"`}, 429, `"retry_after":1.5`},
		"text that is no text":   {"GET", "/v1/jobs?namespace=%ff", "", nil, 400, `UTF-8`},
		"a path that is none":    {"GET", "/v1/jobs/%ff/a", "", nil, 400, `UTF-8`},
		"a page elsewhere":       {"POST", "/v1/jobs", jobJSON, []string{jsonHeader, "Origin: https://evil.example"}, 403, `--http-cors-origin`},
		"a page of our own":      {"POST", "/v1/jobs", jobJSON, []string{jsonHeader, "Origin: " + url}, 200, `"42"`},
		"a rebound name":         {"GET", "/v1/jobs", "", []string{"Host: evil.example:80"}, 421, `evil.example`},
		"a short name":           {"GET", "/v1/jobs", "", []string{"Host: localhost:80"}, 200, `jobs`},
		"an override of a verb":  {"POST", "/v1/jobs", jobJSON, []string{jsonHeader, "X-HTTP-Method-Override: DELETE"}, 200, `"42"`},
	} {
		a := send(t, c.verb, url+c.path, c.body, c.headers...)
		if a.StatusCode != c.status || !strings.Contains(a.body, c.want) && c.want != "jobs" {
			t.Errorf("%s: %s: %s, want %d with %s", name, a.Status, a.body, c.status, c.want)
		}
		if c.status < 400 || c.verb == http.MethodHead {
			continue
		}
		var p struct {
			Type, Title, Detail, Instance, Code string
			Status                              int
		}
		if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != c.status || p.Type == "" || p.Title == "" || p.Detail == "" || p.Code == "" ||
			a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %s is no problem: %v", name, a.body, err)
		}
	}
	a := send(t, "POST", url+"/v1/jobs?again=true", jobJSON, jsonHeader, "Idempotency-Key: k", "If-None-Match: *")
	if r := f.submitted.Load(); r.GetIdempotencyKey() != "k" || r.GetCheckRevision() != -1 || !r.GetAgain() || r.GetSpec().GetGroups()["g"].GetTasks()["t"].GetResources().GetCpuMilli() != 500 || a.Header.Get("ETag") != `"42"` {
		t.Errorf("the server got %v, and returned the ETag %s", r, a.Header.Get("ETag"))
	}
	if a := send(t, "POST", url+"/v1/jobs", jobJSON, jsonHeader, `If-Match: "7"`); a.Header.Get("Retry-After") != "2" {
		t.Errorf("Retry-After is %q", a.Header.Get("Retry-After"))
	}
}

// TestPages: a page names the next one, and large responses are compressed.
func TestPages(t *testing.T) {
	_, url := newFake(t, rest.Options{})
	a := send(t, "GET", url+"/v1/jobs?limit=200&namespace=x", "", "Accept-Encoding: gzip")
	if got, want := a.Header.Get("Link"), `</v1/jobs?limit=200&namespace=x&page_token=a%26b>; rel="next"`; got != want {
		t.Errorf("the link is %s, want %s", got, want)
	}
	in, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(in)
	if err != nil || len(plain) < 2*len(a.body) || !strings.Contains(string(plain), "job-199") {
		t.Errorf("%d bytes became %d: %v", len(plain), len(a.body), err)
	}
	if a := send(t, "GET", url+"/v1/jobs?page_token=x", "", "Accept-Encoding: gzip"); a.Header.Get("Link") != "" || a.Header.Get("Content-Encoding") != "" {
		t.Errorf("a small last page has %v", a.Header)
	}
}

// open begins a stream.
func open(t *testing.T, url string, headers ...string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return resp, bufio.NewScanner(resp.Body)
}

// TestStreams: streams as lines and as events, their errors, and how they continue.
func TestStreams(t *testing.T) {
	f, url := newFake(t, rest.Options{})
	url += "/v1/events:watch"
	resp, in := open(t, url+"?types=job.&types=slot.")
	if in.Scan(); resp.Header.Get("Content-Type") != "application/x-ndjson" || in.Text() != `{"token":"t1", "type":"job.submitted"}` && in.Text() != `{"token":"t1","type":"job.submitted"}` {
		t.Errorf("%v begins with %q", resp.Header, in.Text())
	}
	if got := f.watched.Load().GetTypes(); len(got) != 2 {
		t.Errorf("the types are %v", got)
	}
	resp, in = open(t, url+"?region=breaks", "Accept: text/event-stream", "Last-Event-ID: t0")
	var lines []string
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	if f.watched.Load().GetToken() != "t0" || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the stream continues from %q with %v", f.watched.Load().GetToken(), resp.Header)
	}
	if len(lines) != 6 || lines[0] != "id: t1" || !strings.HasPrefix(lines[1], "data: {") || lines[2] != "" || lines[3] != "event: error" || !strings.Contains(lines[4], `"reason":"NO_MASTER"`) {
		t.Errorf("the events are %q", lines)
	}
	if a := send(t, "GET", url+"?region=denied", "", "Accept: text/event-stream"); a.StatusCode != 403 || !strings.Contains(a.body, "PERMISSION_DENIED") {
		t.Errorf("a denied stream gets %s: %s", a.Status, a.body)
	}
	// A quiet stream gets its headers soon.
	resp, in = open(t, url+"?region=quiet", "Accept: text/event-stream")
	if in.Scan(); resp.StatusCode != 200 || in.Text() != ": nothing new" {
		t.Errorf("a quiet stream begins with %s: %q", resp.Status, in.Text())
	}
}

// TestClientLeaves: the end of a connection ends the stream of the server.
func TestClientLeaves(t *testing.T) {
	f, url := newFake(t, rest.Options{})
	for _, region := range []string{"quiet", "flood"} {
		before := f.ended.Load()
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /v1/events:watch?region=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", region)
		if _, err := conn.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		eventually(t, "the stream "+region+" ends", func() bool { return f.ended.Load() > before })
	}
}

// TestSlowReader: a client that reads nothing ends its stream, and no memory fills.
func TestSlowReader(t *testing.T) {
	undo := rest.SetSlowest(300 * time.Millisecond)
	f, url := newFake(t, rest.Options{})
	t.Cleanup(undo)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/events:watch?region=flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
	eventually(t, "the stream ends", func() bool { return f.ended.Load() == 1 })
}

// TestManyConnections: many connections of others do not end a stream, or a terminal.
func TestManyConnections(t *testing.T) {
	f, url := newFake(t, rest.Options{})
	_, in := open(t, url+"/v1/events:watch")
	if !in.Scan() {
		t.Fatal(in.Err())
	}
	terminal, _, err := websocket.Dial(t.Context(), strings.Replace(url, "http", "ws", 1)+"/v1/allocations:exec", &websocket.DialOptions{Subprotocols: []string{"nusa.exec.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.CloseNow()
	echo := func() {
		t.Helper()
		if err := terminal.Write(t.Context(), websocket.MessageText, []byte(`{"stdin": "aGk="}`)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := terminal.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	for range 300 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if a := send(t, "GET", url+"/v1/jobs", ""); a.StatusCode != 200 {
		t.Errorf("a request gets %s", a.Status)
	}
	if n := f.ended.Load(); n != 0 {
		t.Error("the stream or the terminal has ended")
	}
	echo()
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestLines: each line of submits gets its response in order, and a wrong line fails alone.
func TestLines(t *testing.T) {
	_, url := newFake(t, rest.Options{})
	line := func(name string) string {
		return `{"spec": ` + strings.Replace(jobJSON, `"a"`, `"`+name+`"`, 1) + "}\n"
	}
	body := line("a") + "\n{bad\n" + line("b") + `{"spec": {}, "agian": true}` + "\n" + strings.TrimSpace(line("c"))
	a := send(t, "POST", url+"/v1/jobs:submitMany", body, "Content-Type: application/x-ndjson")
	var got []string
	for l := range strings.Lines(a.body) {
		var r struct {
			Code  int
			Error string
		}
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		got = append(got, fmt.Sprint(r.Code, " ", r.Error))
	}
	if len(got) != 5 || got[0] != "0 a" || !strings.HasPrefix(got[1], "3 line 1") || got[2] != "0 b" || !strings.HasPrefix(got[3], "3 ") || got[4] != "0 c" {
		t.Errorf("the responses are %q", got)
	}
	if a := send(t, "POST", url+"/v1/jobs:submitMany", strings.Repeat("x", 2<<20), "Content-Type: application/x-ndjson"); a.StatusCode != 400 || !strings.Contains(a.body, "1 MiB") {
		t.Errorf("a long line gets %s: %s", a.Status, a.body)
	}
	if a := send(t, "POST", url+"/v1/allocations:exec", `{"start": {}}`+"\n"+`{"stdin": "aGk="}`+"\n", "Content-Type: application/x-ndjson"); !strings.Contains(a.body, `"aGk="`) || !strings.Contains(a.body, `"exitCode":3`) {
		t.Errorf("exec gets %s: %s", a.Status, a.body)
	}
	if a := send(t, "POST", url+"/v1/allocations:exec", `{"start": {}}`+"\n"+`{"stdni": "aGk="}`+"\n", "Content-Type: application/x-ndjson"); !strings.Contains(a.body, "do you mean stdin?") || !strings.Contains(a.body, `"line":2`) {
		t.Errorf("a wrong line of exec gets %s: %s", a.Status, a.body)
	}
}

// TestTerminal: exec over a WebSocket, with a token that is not in the address, from pages of this server
// and of allowed origins only.
func TestTerminal(t *testing.T) {
	f, url := newFake(t, rest.Options{Origins: []string{"https://ops.example"}})
	at := strings.Replace(url, "http", "ws", 1) + "/v1/allocations:exec"
	dial := func(origin, query string, protocols ...string) (*websocket.Conn, error) {
		o := &websocket.DialOptions{Subprotocols: append([]string{"nusa.exec.v1"}, protocols...), HTTPHeader: http.Header{}}
		if origin != "" {
			o.HTTPHeader.Set("Origin", origin)
		}
		c, resp, err := websocket.Dial(t.Context(), at+query, o)
		if resp != nil && resp.Body != nil && err != nil {
			resp.Body.Close()
		}
		return c, err
	}
	for name, c := range map[string]struct {
		origin, query string
		ok            bool
	}{
		"no page": {"", "", true}, "an own page": {url, "", true}, "an allowed page": {"https://ops.example", "", true},
		"another page": {"https://evil.example", "", false}, "a token in the address": {"", "?token=x", false},
	} {
		conn, err := dial(c.origin, c.query)
		if err == nil {
			conn.CloseNow()
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, protocols := range map[string][]string{"subprotocol": {"nusa.token.secret_1"}, "message": nil} {
		conn, err := dial("", "", protocols...)
		if err != nil {
			t.Fatal(err)
		}
		if conn.Subprotocol() != "nusa.exec.v1" {
			t.Errorf("%s: the server chose %q", name, conn.Subprotocol())
		}
		messages := []string{`{"start": {"allocation": "x"}}`, `{"stdin": "aGk="}`, `{"stdinClose": true}`}
		if name == "message" {
			messages = append([]string{`{"token": "secret_1"}`}, messages...)
		}
		for _, m := range messages {
			if err := conn.Write(t.Context(), websocket.MessageText, []byte(m)); err != nil {
				t.Fatal(err)
			}
		}
		var got string
		for {
			_, data, err := conn.Read(t.Context())
			if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v after %s", name, err, got)
			}
			got += string(data)
		}
		if !strings.Contains(got, `"aGk="`) || !strings.Contains(got, "exitCode") || *f.token.Load() != "Bearer secret_1" {
			t.Errorf("%s: the token %q gets %s", name, *f.token.Load(), got)
		}
	}
	// A client that leaves ends the command.
	before := f.ended.Load()
	conn, err := dial("", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"stdin": "aGk="}`)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()
	eventually(t, "the command ends", func() bool { return f.ended.Load() > before })
}

// TestCORS: pages of other origins may call the API only if an option names their origin.
func TestCORS(t *testing.T) {
	_, url := newFake(t, rest.Options{Origins: []string{"https://ops.example"}})
	for origin, want := range map[string]bool{"https://ops.example": true, "https://evil.example": false, "http://ops.example": false, "null": false} {
		pre := send(t, "OPTIONS", url+"/v1/jobs", "", "Origin: "+origin, "Access-Control-Request-Method: POST")
		post := send(t, "POST", url+"/v1/jobs", jobJSON, jsonHeader, "Origin: "+origin)
		read := send(t, "GET", url+"/v1/jobs", "", "Origin: "+origin)
		for _, a := range []answer{pre, post, read} {
			if got := a.Header.Get("Access-Control-Allow-Origin") == origin; got != want {
				t.Errorf("%s %s from %s: %v", a.Request.Method, a.Status, origin, a.Header)
			}
		}
		if (post.StatusCode == 200) != want || (pre.StatusCode == 204) != want {
			t.Errorf("from %s: %s and %s", origin, pre.Status, post.Status)
		}
	}
	for _, bad := range []string{"*", "ops.example", "https://ops.example/", "ftp://x"} {
		if rest.CheckOrigin(bad) == nil {
			t.Errorf("%s counts as an origin", bad)
		}
	}
}

// TestDocsPage: the page and all that it needs come from this server, and its policy allows no other.
func TestDocsPage(t *testing.T) {
	_, url := newFake(t, rest.Options{})
	a := send(t, "GET", url+"/docs/", "")
	policy := a.Header.Get("Content-Security-Policy")
	if a.StatusCode != 200 || !strings.Contains(policy, "default-src 'none'") || strings.Contains(strings.SplitAfter(policy, "style-src")[0], "unsafe") {
		t.Errorf("%s with %s", a.Status, policy)
	}
	if strings.Contains(a.body, `src="http`) || strings.Contains(a.body, `href="http`) {
		t.Error("the page needs another server")
	}
	for _, path := range []string{"/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/openapi.json"} {
		if a := send(t, "GET", url+path, ""); a.StatusCode != 200 || len(a.body) < 10_000 {
			t.Errorf("%s gets %s", path, a.Status)
		}
	}
}
