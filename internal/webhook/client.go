package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Bounds of a request.
const (
	// MaxBody is how much of a response's body is read, in bytes.
	MaxBody = 4096
	// maxHeaders bounds the headers of a response, in bytes.
	maxHeaders = 16 << 10
	// idle is how long an unused connection stays open.
	idle = 30 * time.Second
	// handshake bounds the TLS handshake.
	handshake = 10 * time.Second
)

// Client sends requests to one endpoint. It is safe for concurrent use.
type Client struct {
	http *http.Client
}

// NewClient returns a client that opens at most so many connections. It follows no redirect and uses
// no proxy, because both would lead around the policy.
func NewClient(p *Policy, connections int) *Client {
	return &Client{http: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: p.dial, TLSHandshakeTimeout: handshake,
			TLSClientConfig: &tls.Config{RootCAs: p.Roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
			MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, IdleConnTimeout: idle,
			MaxResponseHeaderBytes: maxHeaders, DisableCompression: true,
		},
	}}
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Message is a request to an endpoint.
type Message struct {
	URL, ID, ContentType string
	Body                 []byte
	// Secrets sign the request. Without secrets it has none of the headers of a webhook.
	Secrets []Secret
	// Header has further headers.
	Header map[string]string
	// At is when the request is made.
	At time.Time
}

// Response is what became of a request.
type Response struct {
	// Status is the HTTP status. 0: there was no response.
	Status int
	// RetryAfter is the value of the header Retry-After. 0: there is none.
	RetryAfter time.Duration
	Took       time.Duration
	// Body is the beginning of the body, as valid UTF-8.
	Body string
	// Err says why the request failed, for people. It has neither the URL nor a secret. Empty: the
	// status is 2xx.
	Err string
}

// Send makes a request, and waits for at most the time-out.
func (c *Client) Send(ctx context.Context, m Message, timeout time.Duration) Response {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	out := c.send(ctx, m)
	out.Took = time.Since(began)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && out.Status == 0 {
		out.Err = fmt.Sprintf("no response within %s", timeout)
	}
	return out
}

func (c *Client) send(ctx context.Context, m Message) Response {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err != nil {
		return Response{Err: Cause(err)}
	}
	req.Header.Set("Content-Type", m.ContentType)
	req.Header.Set("User-Agent", "nusa-webhook")
	if len(m.Secrets) > 0 {
		req.Header.Set("Webhook-Id", m.ID)
		req.Header.Set("Webhook-Timestamp", strconv.FormatInt(m.At.Unix(), 10))
		req.Header.Set("Webhook-Signature", Sign(m.Secrets, m.ID, m.At, m.Body))
	}
	for name, value := range m.Header {
		req.Header.Set(name, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Response{Err: Cause(err)}
	}
	defer resp.Body.Close()
	out := Response{Status: resp.StatusCode, RetryAfter: RetryAfter(resp.Header.Get("Retry-After"), m.At)}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, MaxBody)) // the status says whether the event was accepted
	out.Body = strings.ToValidUTF8(string(body), "\uFFFD")
	switch {
	case out.Status >= 300 && out.Status <= 399:
		out.Err = fmt.Sprintf("status %d: redirects are not followed", out.Status)
	case out.Status < 200 || out.Status > 299:
		out.Err = strings.TrimSpace(fmt.Sprintf("status %d %s", out.Status, http.StatusText(out.Status)))
	}
	return out
}

// Cause returns the text of an error without the URL, on one line.
func Cause(err error) string {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	text := strings.ToValidUTF8(strings.Join(strings.Fields(err.Error()), " "), "\uFFFD")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

// RetryAfter reads a Retry-After header: seconds, or a date. It returns 0 if there is none, or it is
// wrong or past.
func RetryAfter(value string, now time.Time) time.Duration {
	const most = 365 * 24 * 3600
	if seconds, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil {
		return time.Duration(min(seconds, most)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
