package incus

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// answerLimit bounds one request to the daemon. Longer work is an operation in the daemon.
// The driver waits for the operation within the caller's bound.
const answerLimit = 20 * time.Second

// maxAnswer bounds the response to a request, in bytes. The list of all instances is the
// largest response.
const maxAnswer = 64 << 20

// engine calls one Incus daemon. It does not use the daemon's client library, because that
// library ties a context to a connection. Here each request has its own context, like each
// method of a driver.
type engine struct {
	http    *http.Client
	address string // the configured address
	base    string // scheme and host of the URLs
	project string
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	tls     *tls.Config
}

// refusal is an error that the daemon returned.
type refusal struct {
	code int // HTTP status
	text string
}

func (r *refusal) Error() string { return r.text }

func refused(err error, code int) bool {
	var r *refusal
	return errors.As(err, &r) && r.code == code
}

func newEngine(cfg Config) (*engine, error) {
	e := &engine{address: cfg.Address, base: "http://incus", project: cfg.Project}
	var dialer net.Dialer
	// The daemon (6.0) accepts a connection on its socket only after it has read the first
	// bytes of the previous connection. A client that keeps connections may open a
	// connection and leave it unused, because another one became free. Until the daemon
	// gives up the unused connection, it serves no other client, and no container starts.
	// So each request has its own connection, which costs little on one machine. Over HTTPS
	// the client sends its handshake at once, so connections can be reused.
	alone := true
	e.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", cfg.Address)
	}
	if strings.HasPrefix(cfg.Address, "https://") {
		e.base, e.dial = strings.TrimSuffix(cfg.Address, "/"), dialer.DialContext
		e.tls, alone = cfg.TLS, false
	} else if !strings.HasPrefix(cfg.Address, "/") {
		return nil, fmt.Errorf("incus address %q: neither the absolute path of a socket nor https://", cfg.Address)
	}
	e.http = &http.Client{Transport: &http.Transport{DialContext: e.dial, TLSClientConfig: e.tls, DisableKeepAlives: alone, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second}}
	return e, nil
}

func (e *engine) close() { e.http.CloseIdleConnections() }

// call makes a request. If the request begins an operation, call waits for the operation
// until ctx ends.
func (e *engine) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	res, err := e.once(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	if res.Type == api.AsyncResponse {
		return e.await(ctx, res.Operation)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(res.Metadata, out)
}

// answer is the response of the daemon with its metadata not yet decoded.
type answer struct {
	api.Response
	Metadata json.RawMessage `json:"metadata"`
}

func (e *engine) once(caller context.Context, method, path string, query url.Values, in any) (answer, error) {
	ctx, cancel := context.WithTimeout(caller, answerLimit)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return answer{}, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, e.url(path, query), body)
	if err != nil {
		return answer{}, err
	}
	res, err := e.http.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // the URL of a socket has no useful information
		}
		if errors.Is(err, context.DeadlineExceeded) && caller.Err() == nil {
			err = fmt.Errorf("no response within %s", answerLimit)
		}
		if e.tls == nil && errors.Is(err, fs.ErrPermission) {
			if no := driver.Forbidden(e.address); no != nil {
				return answer{}, fmt.Errorf("incus daemon: %w: %w", no, err)
			}
		}
		return answer{}, fmt.Errorf("incus daemon at %s: %w", e.address, err)
	}
	defer res.Body.Close()
	var a answer
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&a); err != nil {
		return answer{}, fmt.Errorf("incus daemon at %s: %s %s: %s: %w", e.address, method, path, res.Status, err)
	}
	if a.Type == api.ErrorResponse {
		return answer{}, &refusal{code: a.Code, text: a.Error}
	}
	return a, nil
}

func (e *engine) url(path string, query url.Values) string {
	if query == nil {
		query = url.Values{}
	}
	if e.project != "" {
		query.Set("project", e.project)
	}
	return e.base + path + "?" + query.Encode()
}

// await waits until an operation ends. A daemon that restarts forgets its operations. In
// that case await returns an error, and the caller must check the instance.
func (e *engine) await(ctx context.Context, operation string) error {
	path, _, _ := strings.Cut(operation, "?")
	for {
		var op api.Operation
		// This time-out is shorter than answerLimit, so a missing response means that the
		// daemon hangs.
		if err := e.call(ctx, http.MethodGet, path+"/wait", url.Values{"timeout": {"10"}}, nil, &op); err != nil {
			return err
		}
		switch op.StatusCode {
		case api.Success:
			return nil
		case api.Failure, api.Cancelled:
			return &refusal{code: http.StatusInternalServerError, text: op.Err}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func instancePath(name string) string { return "/1.0/instances/" + url.PathEscape(name) }

func (e *engine) instance(ctx context.Context, name string) (api.Instance, error) {
	var out api.Instance
	return out, e.call(ctx, http.MethodGet, instancePath(name), nil, nil, &out)
}

func (e *engine) setState(ctx context.Context, name string, put api.InstanceStatePut) error {
	return e.call(ctx, http.MethodPut, instancePath(name)+"/state", nil, put, nil)
}

// log returns the end of a log file of an instance, or "" if the file cannot be read.
func (e *engine) log(ctx context.Context, name, file string) string {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url(instancePath(name)+"/logs/"+file, nil), nil)
	if err != nil {
		return ""
	}
	res, err := e.http.Do(req)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return string(data)
}
