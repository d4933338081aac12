{{- define "pd-handoff.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "pd-handoff.labels" -}}
app: {{ include "pd-handoff.name" . }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
