package hooks

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// defaultLog is the number of deliveries that Log returns if the caller sets none.
const defaultLog = 20

// receiver returns the receiver of a webhook.
func (s *Server) receiver(name string) (*Sender, *receiver, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, nil, err
	}
	if _, err := sender.stored(name); err != nil {
		return nil, nil, err
	}
	if r := sender.of(name); r != nil {
		return sender, r, nil
	}
	return nil, nil, status.Error(codes.Unavailable, errStarting.Error())
}

// Test implements nusav1.WebhooksServer.
func (s *Server) Test(ctx context.Context, req *nusav1.TestWebhookRequest) (*nusav1.TestWebhookResponse, error) {
	sender, err := s.sender()
	if err != nil {
		return nil, err
	}
	stored, err := sender.stored(req.GetName())
	if err != nil {
		return nil, err
	}
	h, err := newHook(stored.WebhookRecord)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "this server cannot use the stored webhook: %s", err)
	}
	select {
	case sender.tests <- struct{}{}:
		defer func() { <-sender.tests }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d tests of webhooks are in progress: repeat the call later", maxTests)
	}
	client := webhook.NewClient(sender.Policy, 1)
	defer client.Close()
	now := sender.Now()
	id := "test-" + strings.ToLower(rand.Text())
	body := cloudevent.OfID(id, &nusav1.Event{
		Type: "webhook.test", Subject: req.GetName(), Message: "a test of this webhook", Time: timestamppb.New(now), Log: "test",
	}).JSON()
	resp := client.Send(ctx, webhook.Message{
		URL: h.web.GetUrl(), ID: id, ContentType: cloudevent.ContentType, Body: body, Secrets: h.secrets, At: now,
	}, h.timeout)
	if err := ctx.Err(); err != nil && resp.Status == 0 {
		return nil, rpcError(err)
	}
	return &nusav1.TestWebhookResponse{Id: id, StatusCode: int32(resp.Status), Duration: durationpb.New(resp.Took), Body: resp.Body, Error: resp.Err}, nil
}

// Log implements nusav1.WebhooksServer.
func (s *Server) Log(_ context.Context, req *nusav1.WebhookLogRequest) (*nusav1.WebhookLogResponse, error) {
	limit := int(req.GetLimit())
	if limit < 0 || limit > recentDeliveries {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "limit", Message: fmt.Sprintf("%d is not within 1 to %d", limit, recentDeliveries)})
	}
	if limit == 0 {
		limit = defaultLog
	}
	_, r, err := s.receiver(req.GetName())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &nusav1.WebhookLogResponse{Deliveries: r.recent.latest(limit, req.GetFailed())}, nil
}

// Replay implements nusav1.WebhooksServer.
func (s *Server) Replay(ctx context.Context, req *nusav1.ReplayWebhookRequest) (*nusav1.ReplayWebhookResponse, error) {
	sender, r, err := s.receiver(req.GetName())
	if err != nil {
		return nil, err
	}
	switch what := req.GetWhat().(type) {
	case *nusav1.ReplayWebhookRequest_Id:
		_, text, _ := cutLast(what.Id, "-")
		number, err := strconv.ParseUint(text, 10, 64)
		if err != nil || number == 0 {
			return nil, rpcerr.Invalid(&nusav1.Problem{Field: "id", Message: fmt.Sprintf("%.80q is not the webhook-id of a delivery, which is LOG-NUMBER", what.Id)})
		}
		events, _, err := sender.Source.After(ctx, number-1, 1)
		if err != nil {
			return nil, rpcError(err)
		}
		if len(events) == 0 || cloudevent.ID(events[0]) != what.Id {
			return nil, status.Errorf(codes.OutOfRange, "the log does not have event %.80s: retention has removed it, or it is of another log", what.Id)
		}
		if _, err := sender.change(ctx, req.GetName(), fmt.Sprintf("event %d, by an operator", number), unchanged(req.GetName(), "replay")); err != nil {
			return nil, err
		}
		if !r.again(number) {
			return nil, status.Errorf(codes.ResourceExhausted, "so many deliveries wait for webhook %s that no other fits: wait, or run nusa webhook enable --skip", req.GetName())
		}
		return &nusav1.ReplayWebhookResponse{Events: 1}, nil
	case *nusav1.ReplayWebhookRequest_From:
		last := sender.Source.Last()
		if what.From == 0 || what.From > last {
			return nil, status.Errorf(codes.OutOfRange, "event %d does not exist: the latest is %d", what.From, last)
		}
		events, missed, err := sender.Source.After(ctx, what.From-1, 1)
		if err != nil {
			return nil, rpcError(err)
		}
		if missed > 0 || len(events) == 0 {
			oldest := uint64(0)
			if len(events) > 0 {
				oldest = events[0].GetNumber()
			}
			return nil, status.Errorf(codes.OutOfRange, "retention has removed event %d: the oldest is %d", what.From, oldest)
		}
		if _, err := sender.change(ctx, req.GetName(), fmt.Sprintf("all events from %d on, by an operator", what.From), unchanged(req.GetName(), "replay")); err != nil {
			return nil, err
		}
		r.rewind(what.From - 1)
		return &nusav1.ReplayWebhookResponse{Events: last - what.From + 1}, nil
	}
	return nil, rpcerr.Invalid(&nusav1.Problem{Field: "what", Message: "give the id of a delivery, or the number of the first event"})
}

// cutLast cuts a text at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// again makes the delivery of one event due now. It reports whether there is room for it.
func (r *receiver) again(number uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number > r.queue.Cursor() {
		return true // it is read soon
	}
	ok := r.queue.Again(number, r.now())
	if ok {
		r.unsaved = deliveries
		r.notify()
	}
	return ok
}

// rewind makes all events after a number be read again.
func (r *receiver) rewind(cursor uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.Rewind(cursor)
	r.moves++
	r.unsaved = deliveries
	r.notify()
}

// hurry makes everything that waits due now. skip: it drops that, and all events until now.
func (r *receiver) hurry(skip bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if skip {
		r.queue.Skip(r.source.Last())
		clear(r.fresh)
		r.moves++
		r.dropped = time.Time{}
	}
	r.queue.Hurry(r.now())
	r.unsaved = deliveries
	r.notify()
}
