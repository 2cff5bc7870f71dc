// Package intake has the commands `nusa intake`: message brokers that jobs are taken from.
package intake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/bus"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa intake`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("intake", "Take jobs from NATS JetStream or RabbitMQ",
		createCommand(s), listCommand(s), showCommand(s), disableCommand(s), enableCommand(s), deleteCommand(s))
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.IntakesClient { return nusav1.NewIntakesClient(c.Conn) }

func createCommand(s *cli.Settings) *cobra.Command {
	in, from := &nusav1.Intake{}, &bus.Broker{}
	replace := false
	c := &cobra.Command{
		Use: "create NAME --url URL", Short: "Take jobs from a message broker", Args: cli.Positional("NAME"),
		Long: `Takes messages whose bodies are job files, YAML or JSON, and submits the jobs with
your rights. A message is acknowledged when its job is stored. A message that can
never be taken becomes a dead letter, with the reason in the header nusa-reason.

RabbitMQ: each message needs a message-id. NATS: the Nats-Msg-Id, or else the place
in the stream, tells a repetition from a new message.`,
		Example: `  nusa intake create orders --url amqps://rabbit.example.com:5671/prod \
    --user nusa --password-file orders.password \
    --exchange jobs --keys 'jobs.#' --job-namespace pay
  nusa intake create batch --url tls://nats.example.com:4222 \
    --password-file nusa.creds --stream JOBS --subject 'jobs.>'`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			in.Name = args[0]
			req := &nusav1.SetIntakeRequest{Intake: in, Revision: cli.NewOnly(replace)}
			var err error
			in.Broker, req.Secrets, err = from.Read(c)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Set(ctx, req)
			if err != nil {
				return cli.Exists(err, replace)
			}
			return c.Print(resp, func(w *term.Screen) {
				fmt.Fprintf(w, "intake %s is stored (%s intake show %s shows how it goes)\n", in.GetName(), c.Program, in.GetName())
			})
		}),
	}
	f := c.Flags()
	from.Flags(f)
	f.StringVar(&in.Description, "description", "", "what the intake is for, at most 256 bytes")
	f.StringVar(&in.Namespace, "job-namespace", "", "namespace of the jobs (default: default)")
	f.StringVar(&in.Queue, "queue", "", "RabbitMQ: the queue (default nusa.intake.NAME)")
	f.StringVar(&in.Exchange, "exchange", "", "RabbitMQ: topic exchange to which the queue is bound (default: none)")
	f.StringSliceVar(&in.Keys, "keys", nil, "RabbitMQ: routing keys by which it is bound (default #)")
	f.StringVar(&in.Stream, "stream", "", "NATS: the stream")
	f.StringVar(&in.Subject, "subject", "", "NATS: only messages with these subjects, such as 'jobs.>'")
	f.StringVar(&in.DeadLetter, "dead-letter", "", "queue or subject of dead letters (default QUEUE.dead, or nusa.dead.NAME)")
	f.Int32Var(&in.InFlight, "in-flight", 0, "messages that are taken and not acknowledged, at most 256 (default 32)")
	f.BoolVar(&replace, "replace", false, "change an intake that exists")
	return c
}

func listCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the intakes, and how they go", Args: cli.Positional(),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, _ string) (*nusav1.ListIntakesResponse, error) {
			out, err := client(c).List(ctx, &nusav1.ListIntakesRequest{States: cli.Enums(states, nusav1.BusState_BUS_STATE_UNSPECIFIED)})
			if err == nil { // a server of an earlier version does not select
				out.Intakes = slices.DeleteFunc(out.Intakes, func(x *nusav1.Intake) bool { return !states.Has(term.Word(x.GetStatus().GetState())) })
			}
			return out, err
		}, func(w *term.Screen, out *nusav1.ListIntakesResponse, _ string) {
			if none := cli.NoneSuch(w.Program, "intakes", "intake list", states, nil); len(out.GetIntakes()) == 0 && none != "" {
				fmt.Fprintln(w, none)
				return
			}
			writeList(w, out.GetIntakes())
		}),
	}
	states = cli.EnumStateFlag(c, "intakes", nusav1.BusState_BUS_STATE_UNSPECIFIED)
	return c
}

func writeList(w *term.Screen, all []*nusav1.Intake) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no intake; create one with: %s intake create NAME --url amqps://…\n", w.Program)
		return
	}
	t := term.NewTable("NAME", "BROKER", "STATE", "NAMESPACE", ">TAKEN", ">DEAD", "#HOST")
	var notes [][2]string
	for _, in := range all {
		st := in.GetStatus()
		t.Row(in.GetName(), bus.Kind(in.GetBroker()), w.State(term.Word(st.GetState())), in.GetNamespace(), fmt.Sprint(st.GetTaken()), fmt.Sprint(st.GetDead()), bus.Host(in.GetBroker()))
		notes = append(notes, [2]string{in.GetName(), st.GetLastError()})
	}
	t.Narrow(w.Width, "BROKER", "NAMESPACE")
	t.Write(w)
	w.Notes(notes)
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show an intake", Args: cli.Positional("NAME"),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.Intake, error) {
			return client(c).Get(ctx, &nusav1.GetIntakeRequest{Name: name})
		}, func(w *term.Screen, out *nusav1.Intake, _ string) { writeOne(w, out) }),
	}
}

func writeOne(w *term.Screen, in *nusav1.Intake) {
	st := in.GetStatus()
	lines := append([][2]string{{"Name", in.GetName()}, {"Description", in.GetDescription()}}, bus.Rows(in.GetBroker())...)
	term.WriteFields(w, append(lines, [][2]string{
		{"Namespace", in.GetNamespace()}, {"Rights of", in.GetPrincipal()}, {"Queue", in.GetQueue()}, {"Exchange", in.GetExchange()},
		{"Keys", strings.Join(in.GetKeys(), ", ")}, {"Stream", in.GetStream()}, {"Subject", in.GetSubject()}, {"Dead letters", in.GetDeadLetter()},
		{"In flight", fmt.Sprint("at most ", in.GetInFlight())}, {"State", w.State(term.Word(st.GetState()))}, {"Connected", term.YesNo(st.GetConnected())},
		{"Taken", fmt.Sprint(st.GetTaken())}, {"Dead", fmt.Sprint(st.GetDead())}, {"Failed attempts", fmt.Sprint(st.GetFailed())},
		{"Last error", st.GetLastError()}, {"Last dead letter", st.GetLastDead()},
	}...))
}

// act returns a command that changes one intake and says so.
func act(s *cli.Settings, use, short, done string, call func(ctx context.Context, c nusav1.IntakesClient, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cli.Positional("NAME"),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.Intake, error) {
			return &nusav1.Intake{Name: name}, call(ctx, client(c), name)
		}, cli.Done[*nusav1.Intake]("intake", done)),
	}
}

func disableCommand(s *cli.Settings) *cobra.Command {
	return act(s, "disable", "Take no messages; they wait at the broker", "disabled", func(ctx context.Context, c nusav1.IntakesClient, name string) error {
		_, err := c.Disable(ctx, &nusav1.DisableIntakeRequest{Name: name})
		return err
	})
}

func enableCommand(s *cli.Settings) *cobra.Command {
	return act(s, "enable", "Take messages again, with an attempt at once", "enabled", func(ctx context.Context, c nusav1.IntakesClient, name string) error {
		_, err := c.Enable(ctx, &nusav1.EnableIntakeRequest{Name: name})
		return err
	})
}

func deleteCommand(s *cli.Settings) *cobra.Command {
	c := act(s, "delete", "Delete an intake; its messages stay at the broker", "deleted", func(ctx context.Context, c nusav1.IntakesClient, name string) error {
		_, err := c.Delete(ctx, &nusav1.DeleteIntakeRequest{Name: name})
		return err
	})
	c.Aliases = []string{"remove", "rm"}
	return c
}
