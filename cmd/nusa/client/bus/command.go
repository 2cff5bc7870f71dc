package bus

import (
	"fmt"
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
			req := &nusav1.SetBusRequest{Bus: b, Revision: -1}
			if replace {
				req.Revision = 0
			}
			var err error
			b.Broker, req.Secrets, err = to.Read(c)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Set(ctx, req)
			if err != nil {
				return err
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
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the buses, and how their delivery goes", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).List(ctx, &nusav1.ListBusesRequest{})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeList(w, resp.GetBuses()) })
		}),
	}
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
		if why := st.GetLastError(); why != "" {
			notes = append(notes, [2]string{b.GetName() + ": ", why})
		}
	}
	t.Narrow(w.Width, "DROPPED", "BROKER")
	t.Write(w)
	Notes(w, notes)
}

// Notes writes what is wrong with some objects below their table.
func Notes(w *term.Screen, notes [][2]string) {
	if len(notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, n := range notes {
		w.Note(n[0], term.OneLine(n[1]))
	}
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a bus", Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Get(ctx, &nusav1.GetBusRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeOne(w, resp) })
		}),
	}
}

func writeOne(w *term.Screen, b *nusav1.Bus) {
	st := b.GetStatus()
	lines := append([][2]string{{"Name", b.GetName()}, {"Description", b.GetDescription()}}, Rows(b.GetBroker())...)
	WriteFields(w, append(lines, [][2]string{
		{"Subject", b.GetSubject()}, {"Exchange", b.GetExchange()}, {"Types", strings.Join(b.GetTypes(), ", ")},
		{"Namespaces", strings.Join(b.GetNamespaces(), ", ")}, {"Filter", b.GetFilter()}, {"State", w.State(term.Word(st.GetState()))},
		{"Connected", YesNo(st.GetConnected())}, {"Handled up to", fmt.Sprint(st.GetCursor())}, {"Lag", fmt.Sprint(st.GetLag())},
		{"Published", fmt.Sprint(st.GetPublished())}, {"Dropped", fmt.Sprint(st.GetDropped())}, {"Failed attempts", fmt.Sprint(st.GetFailed())},
		{"Last error", st.GetLastError()},
	}...))
}

// YesNo returns a word for a fact.
func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// WriteFields writes a table of fields. An empty field is left out.
func WriteFields(w *term.Screen, lines [][2]string) {
	t := term.NewTable("FIELD", "#VALUE")
	for _, line := range lines {
		if line[1] != "" {
			t.Row(line[0], term.OneLine(line[1]))
		}
	}
	t.Write(w)
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
func act(s *cli.Settings, use, short, done string, call func(c *cli.Session, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: short, Args: cli.Positional("NAME"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if err := call(c, args[0]); err != nil {
				return err
			}
			return c.Print(&nusav1.Bus{Name: args[0]}, func(w *term.Screen) { fmt.Fprintf(w, "bus %s is %s\n", args[0], done) })
		}),
	}
}

func disableCommand(s *cli.Settings) *cobra.Command {
	return act(s, "disable", "End the delivery; events wait until enable", "disabled", func(c *cli.Session, name string) error {
		ctx, cancel := c.WithTimeout()
		defer cancel()
		_, err := client(c).Disable(ctx, &nusav1.DisableBusRequest{Name: name})
		return err
	})
}

func enableCommand(s *cli.Settings) *cobra.Command {
	skip := false
	c := act(s, "enable", "Begin the delivery again, with an attempt at once", "enabled", func(c *cli.Session, name string) error {
		ctx, cancel := c.WithTimeout()
		defer cancel()
		_, err := client(c).Enable(ctx, &nusav1.EnableBusRequest{Name: name, Skip: skip})
		return err
	})
	c.Flags().BoolVar(&skip, "skip", false, "do not publish the events that happened until now")
	return c
}

func deleteCommand(s *cli.Settings) *cobra.Command {
	c := act(s, "delete", "Delete a bus; the broker keeps what was published", "deleted", func(c *cli.Session, name string) error {
		ctx, cancel := c.WithTimeout()
		defer cancel()
		_, err := client(c).Delete(ctx, &nusav1.DeleteBusRequest{Name: name})
		return err
	})
	c.Aliases = []string{"remove", "rm"}
	return c
}
