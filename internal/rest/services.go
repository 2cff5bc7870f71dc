package rest

import (
	"context"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	gateway "github.com/nusa-scheduler/nusa/internal/rest/gateway/nusa/v1"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// services are the services of the API. A new service needs one line here.
var services = []binding{
	bind(nusav1.NewJobsClient, gateway.RegisterJobsHandlerClient),
	bind(nusav1.NewAllocationsClient, gateway.RegisterAllocationsHandlerClient),
	bind(nusav1.NewRegionsClient, gateway.RegisterRegionsHandlerClient),
	bind(nusav1.NewNodesClient, gateway.RegisterNodesHandlerClient),
	bind(nusav1.NewTopologyClient, gateway.RegisterTopologyHandlerClient),
	bind(nusav1.NewOriginsClient, gateway.RegisterOriginsHandlerClient),
	bind(nusav1.NewEventsClient, gateway.RegisterEventsHandlerClient),
	bind(nusav1.NewSystemClient, gateway.RegisterSystemHandlerClient),
	bind(nusav1.NewOverviewClient, gateway.RegisterOverviewHandlerClient),
	bind(nusav1.NewAuditClient, gateway.RegisterAuditHandlerClient),
	bind(nusav1.NewAuthClient, gateway.RegisterAuthHandlerClient),
	bind(nusav1.NewTokensClient, gateway.RegisterTokensHandlerClient),
	bind(nusav1.NewMembersClient, gateway.RegisterMembersHandlerClient),
	bind(nusav1.NewKeysClient, gateway.RegisterKeysHandlerClient),
	bind(nusav1.NewPoolsClient, gateway.RegisterPoolsHandlerClient),
	bind(nusav1.NewNamespacesClient, gateway.RegisterNamespacesHandlerClient),
	bind(nusav1.NewRepairsClient, gateway.RegisterRepairsHandlerClient),
	bind(nusav1.NewMonitorClient, gateway.RegisterMonitorHandlerClient),
	bind(nusav1.NewReservationsClient, gateway.RegisterReservationsHandlerClient),
	bind(nusav1.NewBusesClient, gateway.RegisterBusesHandlerClient),
	bind(nusav1.NewDeadLettersClient, gateway.RegisterDeadLettersHandlerClient),
	bind(nusav1.NewTasksClient, gateway.RegisterTasksHandlerClient),
	bind(nusav1.NewSemaphoresClient, gateway.RegisterSemaphoresHandlerClient),
	bind(nusav1.NewSparesClient, gateway.RegisterSparesHandlerClient),
	bind(nusav1.NewIntakesClient, gateway.RegisterIntakesHandlerClient),
	bind(nusav1.NewOverridesClient, gateway.RegisterOverridesHandlerClient),
	bind(nusav1.NewRolloutsClient, gateway.RegisterRolloutsHandlerClient),
	bind(nusav1.NewSchedulesClient, gateway.RegisterSchedulesHandlerClient),
	bind(nusav1.NewWorkflowsClient, gateway.RegisterWorkflowsHandlerClient),
	bind(nusav1.NewWebhooksClient, gateway.RegisterWebhooksHandlerClient),
	bind(nusav1.NewServicesClient, gateway.RegisterServicesHandlerClient),
}

// binding registers the handlers of a service, whose calls go over a connection.
type binding func(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error

func bind[C any](client func(grpc.ClientConnInterface) C, register func(context.Context, *runtime.ServeMux, C) error) binding {
	return func(ctx context.Context, mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
		return register(ctx, mux, client(conn))
	}
}
