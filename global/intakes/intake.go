package intakes

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/buses"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds and defaults of an intake.
const (
	maxKeys         = 16
	defaultInFlight = 32
)

// intake is an intake as the work needs it. It is not changed.
type intake struct {
	*nusav1.Intake
	id     string // of the record
	target *broker.Target
	from   broker.Intake
}

// newIntake reads a stored record. A record that a newer version wrote, or that the policy no longer allows,
// cannot be used.
func newIntake(rec *nusav1.IntakeRecord, policy *webhook.Policy) (*intake, error) {
	in := filled(rec.GetIntake())
	target, problems := broker.NewTarget(buses.SettingsOf(in.GetBroker(), rec.GetSecrets()), policy)
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %s", problems[0].Field, problems[0].Message)
	}
	return &intake{Intake: in, id: rec.GetId(), target: target, from: broker.Intake{
		Queue: in.GetQueue(), Exchange: in.GetExchange(), Keys: in.GetKeys(),
		Stream: in.GetStream(), Durable: "nusa-" + in.GetName(), Subject: in.GetSubject(),
		DeadLetter: in.GetDeadLetter(), InFlight: int(in.GetInFlight()),
	}}, nil
}

// filled returns an intake with its defaults.
func filled(in *nusav1.Intake) *nusav1.Intake {
	out := &nusav1.Intake{}
	proto.Merge(out, in)
	out.Namespace = cmp.Or(out.GetNamespace(), job.DefaultNamespace)
	out.InFlight = cmp.Or(out.GetInFlight(), defaultInFlight)
	if in.GetBroker().GetKind() == nusav1.BrokerKind_BROKER_KIND_NATS {
		out.DeadLetter = cmp.Or(out.GetDeadLetter(), "nusa.dead."+in.GetName())
		return out
	}
	out.Queue = cmp.Or(out.GetQueue(), "nusa.intake."+in.GetName())
	out.DeadLetter = cmp.Or(out.GetDeadLetter(), out.GetQueue()+".dead")
	if len(out.GetKeys()) == 0 && out.GetExchange() != "" {
		out.Keys = []string{"#"}
	}
	return out
}

// check returns the intake of a request in the form that is stored.
func check(in *nusav1.Intake, secrets *nusav1.BrokerSecrets, policy *webhook.Policy, wrong func(field, problem string)) *nusav1.Intake {
	buses.CheckNamed(in.GetName(), in.GetDescription(), wrong)
	if n := in.GetInFlight(); n < 0 || n > broker.MaxInFlight {
		wrong("in_flight", fmt.Sprintf("%d is not within 1 to %d", n, broker.MaxInFlight))
	}
	to, target := buses.CheckBroker(in.GetBroker(), secrets, policy, wrong)
	out := &nusav1.Intake{
		Name: in.GetName(), Broker: to, Description: in.GetDescription(), Namespace: in.GetNamespace(), Queue: in.GetQueue(), Exchange: in.GetExchange(),
		Keys: in.GetKeys(), Stream: in.GetStream(), Subject: in.GetSubject(), DeadLetter: in.GetDeadLetter(), InFlight: in.GetInFlight(),
	}
	switch {
	case target == nil:
	case target.Kind == broker.NATS:
		checkNATS(out, wrong)
	default:
		checkRabbit(out, wrong)
	}
	return out
}

func checkNATS(in *nusav1.Intake, wrong func(field, problem string)) {
	if in.GetQueue() != "" || in.GetExchange() != "" || len(in.GetKeys()) > 0 {
		wrong("queue", "NATS has no queues, exchanges and keys: give a stream")
	}
	if err := broker.CheckStream(in.GetStream()); err != nil {
		wrong("stream", err.Error())
	}
	if in.GetSubject() != "" {
		if err := broker.CheckFilter(in.GetSubject()); err != nil {
			wrong("subject", err.Error())
		}
	}
	if in.GetDeadLetter() != "" {
		if err := broker.CheckSubject(in.GetDeadLetter()); err != nil {
			wrong("dead_letter", err.Error())
		}
	}
}

func checkRabbit(in *nusav1.Intake, wrong func(field, problem string)) {
	if in.GetStream() != "" || in.GetSubject() != "" {
		wrong("stream", "RabbitMQ has no streams and subjects here: give a queue")
	}
	names := []struct{ field, name string }{{"queue", in.GetQueue()}, {"exchange", in.GetExchange()}, {"dead_letter", in.GetDeadLetter()}}
	for _, key := range in.GetKeys() {
		names = append(names, struct{ field, name string }{"keys", key})
	}
	for _, n := range names {
		if err := broker.CheckName(n.name); err != nil {
			wrong(n.field, err.Error())
		}
	}
	if len(in.GetKeys()) > maxKeys {
		wrong("keys", fmt.Sprintf("%d keys, the limit is %d", len(in.GetKeys()), maxKeys))
	}
	if len(in.GetKeys()) > 0 && in.GetExchange() == "" {
		wrong("exchange", "keys bind the queue to an exchange: give one")
	}
	if full := filled(in); full.GetDeadLetter() == full.GetQueue() {
		wrong("dead_letter", "the queue for dead letters must be another one")
	}
}

// shown returns the intake of a record as callers see it: without its secrets.
func shown(rec *nusav1.IntakeRecord, status *nusav1.IntakeStatus) *nusav1.Intake {
	out := filled(rec.GetIntake())
	out.Status = status
	return out
}
