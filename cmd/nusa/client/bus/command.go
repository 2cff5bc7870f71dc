package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa bus`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("bus", "Publish events to NATS JetStream or RabbitMQ",
		createCommand(s), listCommand(s), showCommand(s), testCommand(s), disableCommand(s), enableCommand(s), deleteCommand(s))
	s.Bind(c)
	return c
}

func client(c *cli.Session) nusav1.BusesClient { return nusav1.NewBusesClient(c.Conn) }

func createCommand(s *cli.Settings) *cobra.Command {
	b, to := &nusav1.Bus{}, &Broker{}
	replace := false
	c := &cobra.Command{
		Use: "create NAME --url URL", Short: "Publish events to a message broker", Args: cli.Positional("NAME"),
		Long: `Publishes the events that happen from now on, in order, as CloudEvents in JSON. The
broker confirms each message. After a failure an event may come again, with the same
message id (Nats-Msg-Id, or message-id).

With NATS an event goes to SUBJECT.TYPE, such as nusa.events.job.submitted: a stream
must have these subjects. With RabbitMQ the routing key is the type, and each event
must reach a queue.

--replace changes a bus that exists. It keeps its place in the events, and its
password while the addresses and the user stay.`,
		Example: `  nusa bus create audit --url tls://nats.example.com:4222 \
    --password-file nusa.creds --types 'job.*,region.*'
  nusa bus create ops --url amqps://rabbit.example.com:5671/prod --user nusa \
    --password-file ops.password --filter 'event.region == "eastus"'`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			b.Name = args[0]
			req := &nusav1.SetBusRequest{Bus: b, Revision: cli.NewOnly(replace)}
			var err error
			b.Broker, req.Secrets, err = to.Read(c)
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
				fmt.Fprintf(w, "bus %s is stored (%s bus test %s publishes a test event)\n", b.GetName(), c.Program, b.GetName())
			})
		}),
	}
	f := c.Flags()
	to.Flags(f)
	f.StringVar(&b.Description, "description", "", "what the bus is for, at most 256 bytes")
	f.StringSliceVar(&b.Types, "types", nil, "types of events, such as job.submitted or 'region.*' (default: all)")
	f.StringSliceVar(&b.Namespaces, "namespaces", nil, "only events about objects of these namespaces")
	f.StringVar(&b.Filter, "filter", "", `CEL expression over event, such as 'event.region == "eastus"'`)
	f.StringVar(&b.Subject, "subject", "", "NATS: beginning of the subjects (default nusa.events)")
	f.StringVar(&b.Exchange, "exchange", "", "RabbitMQ: topic exchange (default nusa.events)")
	f.BoolVar(&replace, "replace", false, "change a bus that exists")
	return c
}

func listCommand(s *cli.Settings) *cobra.Command {
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the buses, and how their delivery goes", Args: cli.Positional(),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, _ string) (*nusav1.ListBusesResponse, error) {
			out, err := client(c).List(ctx, &nusav1.ListBusesRequest{States: cli.Enums(states, nusav1.BusState_BUS_STATE_UNSPECIFIED)})
			if err == nil { // a server of an earlier version does not select
				out.Buses = slices.DeleteFunc(out.Buses, func(x *nusav1.Bus) bool { return !states.Has(term.Word(x.GetStatus().GetState())) })
			}
			return out, err
		}, func(w *term.Screen, out *nusav1.ListBusesResponse, _ string) {
			if none := cli.NoneSuch(w.Program, "buses", "bus list", states, nil); len(out.GetBuses()) == 0 && none != "" {
				fmt.Fprintln(w, none)
				return
			}
			writeList(w, out.GetBuses())
		}),
	}
	states = cli.EnumStateFlag(c, "buses", nusav1.BusState_BUS_STATE_UNSPECIFIED)
	return c
}

func writeList(w *term.Screen, all []*nusav1.Bus) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no bus; create one with: %s bus create NAME --url tls://…\n", w.Program)
		return
	}
	t := term.NewTable("NAME", "BROKER", "STATE", ">LAG", ">PUBLISHED", ">DROPPED", "#HOST")
	var notes [][2]string
	for _, b := range all {
		st := b.GetStatus()
		t.Row(b.GetName(), Kind(b.GetBroker()), w.State(term.Word(st.GetState())), fmt.Sprint(st.GetLag()),
			fmt.Sprint(st.GetPublished()), fmt.Sprint(st.GetDropped()), Host(b.GetBroker()))
		notes = append(notes, [2]string{b.GetName(), st.GetLastError()})
	}
	t.Narrow(w.Width, "DROPPED", "BROKER")
	t.Write(w)
	w.Notes(notes)
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a bus", Args: cli.Positional("NAME"),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.Bus, error) {
			return client(c).Get(ctx, &nusav1.GetBusRequest{Name: name})
		}, func(w *term.Screen, out *nusav1.Bus, _ string) { writeOne(w, out) }),
	}
}

func writeOne(w *term.Screen, b *nusav1.Bus) {
	st := b.GetStatus()
	lines := append([][2]string{{"Name", b.GetName()}, {"Description", b.GetDescription()}}, Rows(b.GetBroker())...)
	term.WriteFields(w, append(lines, [][2]string{
		{"Subject", b.GetSubject()}, {"Exchange", b.GetExchange()}, {"Types", strings.Join(b.GetTypes(), ", ")},
		{"Namespaces", strings.Join(b.GetNamespaces(), ", ")}, {"Filter", b.GetFilter()}, {"State", w.State(term.Word(st.GetState()))},
		{"Connected", term.YesNo(st.GetConnected())}, {"Handled up to", fmt.Sprint(st.GetCursor())}, {"Lag", fmt.Sprint(st.GetLag())},
		{"Published", fmt.Sprint(st.GetPublished())}, {"Dropped", fmt.Sprint(st.GetDropped())}, {"Failed attempts", fmt.Sprint(st.GetFailed())},
		{"Last error", st.GetLastError()},
	}...))
}

func testCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "test NAME", Short: "Publish a test event now", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Test(ctx, &nusav1.TestBusRequest{Name: args[0]})
			if err != nil {
				return err
			}
			took := term.Duration(resp.GetDuration().AsDuration())
			err = c.Print(resp, func(w *term.Screen) {
				if resp.GetError() == "" {
					fmt.Fprintf(w, "the broker confirmed test event %s in %s\n", resp.GetId(), took)
				}
			})
			if err == nil && resp.GetError() != "" {
				err = fmt.Errorf("the broker did not confirm the test event: %s", term.OneLine(resp.GetError()))
			}
			return err
		}),
	}
}

// act returns a command that changes one bus and says so.
func act(s *cli.Settings, use, short, done string, call func(ctx context.Context, c nusav1.BusesClient, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cli.Positional("NAME"),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.Bus, error) {
			return &nusav1.Bus{Name: name}, call(ctx, client(c), name)
		}, cli.Done[*nusav1.Bus]("bus", done)),
	}
}

func disableCommand(s *cli.Settings) *cobra.Command {
	return act(s, "disable", "End the delivery; events wait until enable", "disabled", func(ctx context.Context, c nusav1.BusesClient, name string) error {
		_, err := c.Disable(ctx, &nusav1.DisableBusRequest{Name: name})
		return err
	})
}

func enableCommand(s *cli.Settings) *cobra.Command {
	skip := false
	c := act(s, "enable", "Begin the delivery again, with an attempt at once", "enabled", func(ctx context.Context, c nusav1.BusesClient, name string) error {
		_, err := c.Enable(ctx, &nusav1.EnableBusRequest{Name: name, Skip: skip})
		return err
	})
	c.Flags().BoolVar(&skip, "skip", false, "do not publish the events that happened until now")
	return c
}

func deleteCommand(s *cli.Settings) *cobra.Command {
	c := act(s, "delete", "Delete a bus; the broker keeps what was published", "deleted", func(ctx context.Context, c nusav1.BusesClient, name string) error {
		_, err := c.Delete(ctx, &nusav1.DeleteBusRequest{Name: name})
		return err
	})
	c.Aliases = []string{"remove", "rm"}
	return c
}
