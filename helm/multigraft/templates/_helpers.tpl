{{/* Names, labels and images that several templates share. */}}

{{- define "multigraft.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide objects: two releases in two namespaces may have the same name. */}}
{{- define "multigraft.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "multigraft.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* The trainers' NetworkPolicy lets in pods of this very name, so no value changes it. */}}
{{- define "multigraft.selectorLabels" -}}
app.kubernetes.io/name: multigraft-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "multigraft.labels" -}}
{{ include "multigraft.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: multigraft
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes a dict of `image` and `version`. */}}
{{- define "multigraft.image" -}}
{{- $image := .image -}}
{{- $name := $image.repository -}}
{{- if $image.registry }}{{ $name = printf "%s/%s" $image.registry $image.repository }}{{ end -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $name $image.digest }}
{{- else -}}
{{ printf "%s:%s" $name (default .version $image.tag) }}
{{- end -}}
{{- end -}}

{{- define "multigraft.operatorImage" -}}
{{ include "multigraft.image" (dict "image" .Values.image "version" .Chart.AppVersion) }}
{{- end -}}

{{- define "multigraft.trainerImage" -}}
{{ include "multigraft.image" (dict "image" .Values.trainer.image "version" .Chart.AppVersion) }}
{{- end -}}

{{- define "multigraft.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "multigraft.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "multigraft.keySecretName" -}}
{{ default (printf "%s-key" (include "multigraft.fullname" .)) .Values.key.existingSecret }}
{{- end -}}

{{- define "multigraft.testLabels" -}}
app.kubernetes.io/name: multigraft-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: test
app.kubernetes.io/part-of: multigraft
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes the hook's weight. */}}
{{- define "multigraft.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "multigraft.testNamespace" -}}
{{ default (first (append .Values.watchNamespaces .Release.Namespace)) .Values.test.namespace }}
{{- end -}}

{{/* Takes a dict of `when` (Auto, Always, Never), `kind` and `root`; gives "yes" or nothing. */}}
{{- define "multigraft.wants" -}}
{{- if or (eq .when "Always") (and (eq .when "Auto") (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind))) -}}yes{{- end -}}
{{- end -}}
