package service

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa service`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("service", "Find the healthy instances of services", listCommand(s), resolveCommand(s))
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

func client(c *cli.Session) nusav1.ServicesClient { return nusav1.NewServicesClient(c.Conn) }

func listCommand(s *cli.Settings) *cobra.Command {
	tag := ""
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the services that have healthy instances", Args: cli.Positional(),
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, _ string) (*nusav1.ListServicesResponse, error) {
			return list(ctx, c, tag)
		}, func(w *term.Screen, out *nusav1.ListServicesResponse, _ string) { writeList(w, out, tag) }),
	}
	c.Flags().StringVar(&tag, "tag", "", "only services that have instances with this tag; only these instances count")
	return c
}

// list reads all pages. Its age is that of the first page, which is the oldest answer.
func list(ctx context.Context, c *cli.Session, tag string) (*nusav1.ListServicesResponse, error) {
	out := &nusav1.ListServicesResponse{}
	err := cli.Pages(func(token string) (string, error) {
		page, err := client(c).List(ctx, &nusav1.ListServicesRequest{Namespace: c.Namespace, Tag: tag, PageToken: token})
		out.Services = append(out.Services, page.GetServices()...)
		if token == "" {
			out.Age = page.GetAge()
		}
		return page.GetNextPageToken(), err
	})
	return out, err
}

func writeList(w *term.Screen, list *nusav1.ListServicesResponse, tag string) {
	if len(list.GetServices()) == 0 && tag != "" {
		fmt.Fprintf(w, "no service has a healthy instance with the tag %s; %s service list shows all\n", tag, w.Program)
	} else if len(list.GetServices()) == 0 {
		fmt.Fprintln(w, "no service has a healthy instance; a job names its services: services of a group in its file")
	} else {
		t := term.NewTable("SERVICE", ">INSTANCES", "REGIONS", "TAGS")
		for _, v := range list.GetServices() {
			t.Row(v.GetNamespace()+"/"+v.GetName(), term.Count(v.GetInstances()), strings.Join(v.GetRegions(), " "), strings.Join(v.GetTags(), " "))
		}
		t.DropEmpty("TAGS")
		t.Write(w)
	}
	if age := list.GetAge().AsDuration(); age >= time.Second {
		fmt.Fprintf(w, "confirmed %s ago\n", term.Duration(age))
	}
}

func resolveCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.ResolveServiceRequest{}
	c := &cobra.Command{
		Use: "resolve NAME", Short: "Show the instances of a service, the nearest first", Args: cli.Positional("NAME"),
		Long: `Shows the healthy instances of a service by region, the nearest region first, and why.
Distances are median round trips from --from. Without it they count from the region of
the server, and a global server sorts the regions by name.`,
		Example: `  nusa service resolve web
  nusa service resolve web --from jakarta --tag blue --nearest`,
		RunE: cli.Call(s, func(ctx context.Context, c *cli.Session, name string) (*nusav1.ResolveServiceResponse, error) {
			req.Namespace, req.Name = c.Namespace, name
			return client(c).Resolve(ctx, req)
		}, func(w *term.Screen, out *nusav1.ResolveServiceResponse, _ string) { writeInstances(w, out) }),
	}
	f := c.Flags()
	f.StringVar(&req.Tag, "tag", "", "only instances with this tag")
	f.StringVar(&req.From, "from", "", "region from which distances count (default: the region of the server)")
	f.BoolVar(&req.Nearest, "nearest", false, "only the nearest region that has any")
	return c
}

func writeInstances(w *term.Screen, out *nusav1.ResolveServiceResponse) {
	t := term.NewTable("REGION", ">RTT", "ADDRESS", "NODE", "JOB", "ALLOC", "TAGS", ">AGE")
	for _, r := range out.GetRegions() {
		age := ""
		if d := r.GetAge().AsDuration(); d >= time.Second {
			age = term.Duration(d)
		}
		for _, i := range r.GetInstances() {
			t.Row(r.GetRegion(), roundTrip(r), net.JoinHostPort(i.GetAddress(), strconv.Itoa(int(i.GetPort()))), i.GetNode(),
				fmt.Sprintf("%s/%s[%d]", i.GetJob(), i.GetGroup(), i.GetIndex()), term.ShortID(i.GetAlloc()), strings.Join(i.GetTags(), " "), age)
		}
	}
	t.DropEmpty("TAGS", "AGE")
	t.Narrow(w.Width, "ALLOC", "NODE", "TAGS", "JOB")
	t.Write(w)
	w.Note("", term.OneLine(out.GetChosen()))
}

// roundTrip returns the round trip to a region; a dash if there is none.
func roundTrip(r *nusav1.ServiceRegionInstances) string {
	if r.GetRtt() == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", float64(r.GetRtt().AsDuration())/float64(time.Millisecond))
}
