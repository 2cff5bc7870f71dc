package buses

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	maxDescription = 256
	// defaultPlace is the subject or exchange of a bus that names none.
	defaultPlace = "nusa.events"
	// missedHeader has the number of events that retention removed before this one was published.
	missedHeader = "nusa-missed"
	// ownEvents is the prefix of the types of events about buses: see cloudevent.Selection.
	ownEvents = "bus."
)

var namePattern = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// bus is a bus as the delivery needs it. It is not changed.
type bus struct {
	disabled bool
	filter   *cloudevent.Selection
	target   *broker.Target
	sink     broker.Sink
}

// newBus reads a stored record. A record that a newer version wrote, or that the policy no longer allows,
// cannot be used.
func newBus(rec *nusav1.BusRecord, policy *webhook.Policy) (*bus, error) {
	b := rec.GetBus()
	filter, err := cloudevent.NewSelection(ownEvents, b.GetName(), b.GetTypes(), b.GetNamespaces(), b.GetFilter())
	if err != nil {
		return nil, err
	}
	target, problems := broker.NewTarget(SettingsOf(b.GetBroker(), rec.GetSecrets()), policy)
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %s", problems[0].Field, problems[0].Message)
	}
	return &bus{
		disabled: b.GetDisabled(), filter: filter, target: target,
		sink: broker.Sink{Subject: cmp.Or(b.GetSubject(), defaultPlace), Exchange: cmp.Or(b.GetExchange(), defaultPlace)},
	}, nil
}

// SettingsOf returns the settings of a broker with its secrets.
func SettingsOf(b *nusav1.Broker, secrets *nusav1.BrokerSecrets) broker.Settings {
	return broker.Settings{
		URLs: b.GetUrls(), User: b.GetUser(), Password: broker.NewSecret(secrets.GetPassword()),
		CA: b.GetCa(), Certificate: b.GetCertificate(), Key: broker.NewSecret(secrets.GetKey()),
	}
}

// CheckBroker checks the broker of an object. It returns the form that is stored, and the target.
func CheckBroker(b *nusav1.Broker, secrets *nusav1.BrokerSecrets, policy *webhook.Policy, wrong func(field, problem string)) (*nusav1.Broker, *broker.Target) {
	target, problems := broker.NewTarget(SettingsOf(b, secrets), policy)
	for _, p := range problems {
		if p.Field == "password" || p.Field == "key" {
			wrong("secrets."+p.Field, p.Message)
			continue
		}
		wrong("broker."+p.Field, p.Message)
	}
	out := &nusav1.Broker{
		Urls: b.GetUrls(), User: b.GetUser(), Ca: b.GetCa(), Certificate: b.GetCertificate(),
		HasPassword: secrets.GetPassword() != "", HasKey: secrets.GetKey() != "",
	}
	if target != nil {
		out.Kind = map[broker.Kind]nusav1.BrokerKind{
			broker.NATS: nusav1.BrokerKind_BROKER_KIND_NATS, broker.RabbitMQ: nusav1.BrokerKind_BROKER_KIND_RABBITMQ,
		}[target.Kind]
	}
	return out, target
}

// SecretsFor returns the secrets that a changed object has: the given ones, or those that it had. A stored
// password does not follow the object to another address, because who may set the object may not know it.
func SecretsFor(given, had *nusav1.BrokerSecrets, now, before *nusav1.Broker, wrong func(field, problem string)) *nusav1.BrokerSecrets {
	switch {
	case given != nil:
		return given
	case had.GetPassword() == "" && had.GetKey() == "":
		return had
	}
	for _, u := range now.GetUrls() {
		if !slices.Contains(before.GetUrls(), u) {
			wrong("secrets", "the addresses change: give the password and the private key again")
			return had
		}
	}
	if now.GetUser() != before.GetUser() {
		wrong("secrets", "the user changes: give the password and the private key again")
	}
	return had
}

// CheckNamed checks the name and the description of an object.
func CheckNamed(name, description string, wrong func(field, problem string)) {
	if !namePattern().MatchString(name) {
		wrong("name", fmt.Sprintf("%.80q: a name has lower-case letters, digits and hyphens, at most 63", name))
	}
	if n := len(description); n > maxDescription {
		wrong("description", fmt.Sprintf("%d bytes long, the limit is %d", n, maxDescription))
	}
}

// Problems collects what is wrong with a request.
type Problems []*nusav1.Problem

// Wrong returns a function that adds a problem with a field of a message.
func (p *Problems) Wrong(message string) func(field, problem string) {
	return func(field, problem string) {
		if field != "secrets" && !strings.HasPrefix(field, "secrets.") {
			field = message + "." + field
		}
		*p = append(*p, &nusav1.Problem{Field: field, Message: problem})
	}
}

// Err returns INVALID_ARGUMENT with the problems, or nil.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return rpcerr.Invalid(p...)
}

// check returns the bus of a request in the form that is stored.
func check(b *nusav1.Bus, secrets *nusav1.BrokerSecrets, policy *webhook.Policy, wrong func(field, problem string)) *nusav1.Bus {
	CheckNamed(b.GetName(), b.GetDescription(), wrong)
	cloudevent.Check(b.GetTypes(), b.GetNamespaces(), b.GetFilter(), wrong)
	if err := broker.CheckSubject(cmp.Or(b.GetSubject(), defaultPlace)); err != nil {
		wrong("subject", err.Error())
	}
	if err := broker.CheckName(b.GetExchange()); err != nil {
		wrong("exchange", err.Error())
	}
	to, target := CheckBroker(b.GetBroker(), secrets, policy, wrong)
	switch {
	case target == nil:
	case target.Kind == broker.NATS && b.GetExchange() != "":
		wrong("exchange", "NATS has no exchanges: give a subject")
	case target.Kind == broker.RabbitMQ && b.GetSubject() != "":
		wrong("subject", "RabbitMQ has no subjects: give an exchange")
	}
	return &nusav1.Bus{
		Name: b.GetName(), Broker: to, Description: b.GetDescription(), Types: b.GetTypes(), Namespaces: b.GetNamespaces(),
		Filter: b.GetFilter(), Subject: b.GetSubject(), Exchange: b.GetExchange(),
	}
}

// NewID returns the random id of a new object.
func NewID() string { return strings.ToLower(rand.Text()[:12]) }

// shown returns the bus of a record as callers see it: without its secrets.
func shown(rec *nusav1.BusRecord, status *nusav1.BusStatus) *nusav1.Bus {
	out := proto.CloneOf(rec.GetBus())
	out.Status = status
	switch {
	case out.GetBroker().GetKind() == nusav1.BrokerKind_BROKER_KIND_NATS:
		out.Subject = cmp.Or(out.GetSubject(), defaultPlace)
	default:
		out.Exchange = cmp.Or(out.GetExchange(), defaultPlace)
	}
	return out
}

// messageOf returns the message of an event. missed is the number of events that retention removed before
// it.
func messageOf(e *nusav1.Event, missed uint64) broker.Message {
	m := broker.Message{ID: cloudevent.ID(e), Key: e.GetType(), ContentType: cloudevent.ContentType, Body: cloudevent.Of(e).JSON()}
	if missed > 0 {
		m.Headers = map[string]string{missedHeader: strconv.FormatUint(missed, 10)}
	}
	return m
}
