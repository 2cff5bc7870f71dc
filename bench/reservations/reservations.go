// Package reservations measures how many reservations a second a running federation accepts over HTTP.
//
//	reservations.go  the measurement
package reservations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options are the options of a measurement.
type Options struct {
	// URL is the HTTP address of a global server, such as http://127.0.0.1:7601.
	URL string
	// Token is an access token. Empty: the server needs none.
	Token string
	// Pool is the node pool of the reservations.
	Pool string
	// Callers make calls at the same time, each over its own connection.
	Callers int
	// Duration is the length of each of the two parts of the measurement.
	Duration time.Duration
}

// Result is the outcome of a measurement.
type Result struct {
	Callers int `json:"callers"`
	// Reservations is the number of durable reservations, and Rate the number in a second.
	Reservations int     `json:"reservations"`
	Rate         float64 `json:"reservations_per_second"`
	// EmptyRate is the number of calls in a second that read one reservation.
	EmptyRate float64 `json:"empty_calls_per_second"`
}

// bodyOf returns a request for a part of a core that thousands can have.
func bodyOf(pool string) string {
	return fmt.Sprintf(`{"requested_cpu": 0.001, "requested_memory": 1, "requested_pool": %q}`, pool)
}

// Measure makes reservations, and then calls that change nothing.
func Measure(ctx context.Context, o Options) (*Result, error) {
	if o.Callers < 1 || o.Callers > 1024 || o.Duration <= 0 {
		return nil, errors.New("callers must be 1..1024, and the duration above 0")
	}
	base := strings.TrimRight(o.URL, "/")
	body := bodyOf(o.Pool)
	var id atomic.Pointer[string]
	made, rate, err := run(ctx, o, func(ctx context.Context, c *http.Client) error {
		text, err := call(ctx, c, o.Token, http.MethodPost, base+"/schedule", body)
		if parts := strings.Split(text, `"`); err == nil && len(parts) > 3 {
			id.Store(&parts[3])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if id.Load() == nil {
		return nil, errors.New("no reservation was made in the time")
	}
	_, empty, err := run(ctx, o, func(ctx context.Context, c *http.Client) error {
		_, err := call(ctx, c, o.Token, http.MethodGet, base+"/result/"+*id.Load(), "")
		return err
	})
	return &Result{Callers: o.Callers, Reservations: made, Rate: rate, EmptyRate: empty}, err
}

// run repeats a call by all callers until the duration has passed, and returns the number of calls and the
// number in a second.
func run(ctx context.Context, o Options, do func(context.Context, *http.Client) error) (calls int, rate float64, err error) {
	var n atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range o.Callers {
		g.Go(func() error {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: time.Minute}
			for time.Since(began) < o.Duration {
				if err := do(ctx, client); err != nil {
					return err
				}
				n.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	return int(n.Load()), float64(n.Load()) / time.Since(began).Seconds(), err
}

// call makes one request and returns the body of its response.
func call(ctx context.Context, c *http.Client, token, verb, url, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, verb, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.300s", verb, url, resp.Status, text)
	}
	return string(text), err
}

// Table writes the result for people.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "callers\t%d\nreservations\t%d\nreservations a second\t%.0f\nempty calls a second\t%.0f\n", r.Callers, r.Reservations, r.Rate, r.EmptyRate)
	return t.Flush()
}
